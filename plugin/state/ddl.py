"""Types as Spark writes them in DDL, as Arrow types: ``"amount decimal(12,2), tags array<string>"``.

What is accepted is what Spark accepts, less the types that no Python value stands for. A text that can't be read is
refused with its position and with what is allowed there; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import pyarrow as pa

from lockstep.errors import ConfigurationError

MAX_DEPTH = 64
MAX_PRECISION = 38

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = ("decimal", "dec", "numeric")
_TEXT_WITH_LENGTH = ("char", "character", "varchar")
_KNOWN_TO_SPARK_ONLY = frozenset({"interval", "variant", "void", "null", "geometry", "geography", "time", "object"})
_ALLOWED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, char(n), varchar(n), binary, date, "
    "timestamp, timestamp_ntz, array<T>, map<K, V>, struct<name: T, ...>"
)
_NAMES: dict[pa.DataType, str] = {}
for _name, _type in _SIMPLE.items():
    _NAMES.setdefault(_type, _name if _name != "timestamp_ltz" else "timestamp")

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>[A-Za-z0-9_]+)
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
      | (?P<sign>[<>(),:])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"(?!\d+\Z)[A-Za-z0-9_]+", re.ASCII)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int  # of its first character, counted from 1


def parse_type(ddl: str) -> pa.DataType:
    """The Arrow type of one DDL type, such as ``map<string, array<bigint>>``."""
    reader = _Reader(ddl)
    parsed = reader.type(0)
    reader.finish("the type ends here")
    return parsed


def parse_columns(ddl: str) -> pa.Schema:
    """The schema of a column list, such as ``account string NOT NULL, amount bigint``."""
    reader = _Reader(ddl)
    fields = reader.fields(0)
    reader.finish('"," and another column, NOT NULL, COMMENT, or the end')
    return pa.schema(fields)


def parse_value(ddl: str) -> pa.DataType:
    """The type of a state's value: one type, or a column list, which stands for a struct of these columns."""
    reader = _Reader(ddl)
    return pa.struct(list(parse_columns(ddl))) if reader.begins_with_column() else parse_type(ddl)


def to_ddl(arrow: pa.DataType) -> str:
    """The DDL of a type: ``parse_type(to_ddl(t)) == t`` for every type that :func:`parse_type` gives."""
    name = _NAMES.get(arrow)
    if name is not None:
        return name
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        return "timestamp"  # of another zone: the same instants
    if pa.types.is_list(arrow):
        return f"array<{to_ddl(arrow.value_type)}>"
    if pa.types.is_map(arrow):
        return f"map<{to_ddl(arrow.key_type)}, {to_ddl(arrow.item_type)}>"
    if pa.types.is_struct(arrow):
        return f"struct<{', '.join(_field_to_ddl(arrow.field(i)) for i in range(arrow.num_fields))}>"
    raise ConfigurationError(f"The Arrow type {arrow} has no DDL type here. Use one of: {_ALLOWED}.")


def _field_to_ddl(field: pa.Field) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}: {to_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"


def unhashable_part(arrow: pa.DataType) -> pa.DataType | None:
    """The array or map in ``arrow`` for which its values can't be keys of a dict, or ``None``."""
    if pa.types.is_list(arrow) or pa.types.is_map(arrow):
        return arrow
    if pa.types.is_struct(arrow):
        parts = (unhashable_part(arrow.field(i).type) for i in range(arrow.num_fields))
        return next((part for part in parts if part is not None), None)
    return None


class _Reader:
    """Reads one text from left to right, one token ahead."""

    def __init__(self, ddl: str) -> None:
        if not isinstance(ddl, str):
            raise ConfigurationError(
                f"A type is given as DDL text, such as 'bigint' or 'a bigint, b string', not as {ddl!r}."
            )
        self._ddl = ddl
        self._offset = 0
        self._token = self._read()

    def fields(self, depth: int) -> list[pa.Field]:
        """name [:] type [NOT NULL] [COMMENT '...'], separated by commas."""
        found: list[pa.Field] = []
        seen: set[str] = set()
        while True:
            at = self._token
            name = self._name()
            if name.lower() in seen:
                self._fail(f"the name {name!r} is there twice (Spark does not tell upper from lower case)", at)
            seen.add(name.lower())
            self._skip(":")
            arrow = self.type(depth + 1)
            found.append(pa.field(name, arrow, nullable=not self._not_null_and_comment()))
            if not self._skip(","):
                return found

    def type(self, depth: int) -> pa.DataType:
        at = self._token
        if depth > MAX_DEPTH:
            self._fail(f"types are nested deeper than {MAX_DEPTH}", at)
        if at.kind != "word":
            self._fail(f"{self._shown(at)} where a type is expected. Allowed: {_ALLOWED}", at)
        word = at.text.lower()
        simple = _SIMPLE.get(word)
        if simple is not None:
            self._next()
            return simple
        parametrised = self._parametrised(word)
        if parametrised is None:
            known = "no type that state can hold" if word in _KNOWN_TO_SPARK_ONLY else "not a type"
            self._fail(f"{at.text!r} is {known}. Allowed: {_ALLOWED}", at)
        self._next()
        return parametrised(depth, at)

    def begins_with_column(self) -> bool:
        """Whether a name and its type come first. A type alone is never followed by a word, nor by "," or ":"."""
        if self._token.kind == "quoted":
            return True
        self._next()
        return self._token.kind in ("word", "quoted") or self._token.text in (",", ":")

    def finish(self, expected: str) -> None:
        if self._token.kind != "end":
            self._fail(f"{self._shown(self._token)} is not expected: {expected}", self._token)

    def _parametrised(self, word: str) -> Callable[[int, _Token], pa.DataType] | None:
        if word in _DECIMAL:
            return self._decimal
        if word in _TEXT_WITH_LENGTH:
            return self._text_with_length
        return {"array": self._array, "map": self._map, "struct": self._struct}.get(word)

    def _decimal(self, _depth: int, at: _Token) -> pa.DataType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            if self._skip(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= MAX_PRECISION and scale <= precision):
            self._fail(f"decimal({precision},{scale}): allowed is 1 <= p <= {MAX_PRECISION} and 0 <= s <= p", at)
        return pa.decimal128(precision, scale)

    def _text_with_length(self, _depth: int, at: _Token) -> pa.DataType:
        self._expect("(")
        if self._number() < 1:
            self._fail(f"{at.text} needs a length of at least 1", at)
        self._expect(")")
        return pa.string()

    def _array(self, depth: int, _at: _Token) -> pa.DataType:
        self._expect("<")
        element = self.type(depth + 1)
        self._expect(">")
        return pa.list_(element)

    def _map(self, depth: int, _at: _Token) -> pa.DataType:
        self._expect("<")
        at = self._token
        key = self.type(depth + 1)
        if unhashable_part(key) is not None:
            self._fail("a map's key can't be or contain an array or a map: Python can't look one up in a dict", at)
        self._expect(",")
        value = self.type(depth + 1)
        self._expect(">")
        return pa.map_(key, value)

    def _struct(self, depth: int, _at: _Token) -> pa.DataType:
        self._expect("<")
        if self._token.text == ">":
            self._fail("a struct needs at least one field", self._token)
        fields = self.fields(depth)
        self._expect(">")
        return pa.struct(fields)

    def _not_null_and_comment(self) -> bool:
        not_null = False
        while self._token.kind == "word":
            at, word = self._token, self._token.text.lower()
            if word == "not":
                self._next()
                if self._token.text.lower() != "null":
                    self._fail(f"{self._shown(self._token)} where NULL is expected after NOT", self._token)
                not_null = True
            elif word == "comment":
                self._next()
                if self._token.kind != "text":
                    self._fail(f"{self._shown(self._token)} where a quoted comment is expected", self._token)
            else:
                self._fail(f'{self._shown(at)} after a type: allowed are ",", NOT NULL and COMMENT', at)
            self._next()
        return not_null

    def _name(self) -> str:
        at = self._token
        if at.kind != "quoted" and (at.kind != "word" or at.text.isdigit()):
            allowed = "letters, digits and _, or anything in `back-quotes`"
            self._fail(f"{self._shown(at)} where a name is expected: {allowed}", at)
        self._next()
        return at.text

    def _number(self) -> int:
        at = self._token
        if at.kind != "word" or not at.text.isdigit() or len(at.text) > 9:
            self._fail(f"{self._shown(at)} where a whole number is expected", at)
        self._next()
        return int(at.text)

    def _skip(self, sign: str) -> bool:
        if self._token.kind == "sign" and self._token.text == sign:
            self._next()
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(f'{self._shown(self._token)} where "{sign}" is expected', self._token)

    def _next(self) -> None:
        self._token = self._read()

    def _read(self) -> _Token:
        found = _TOKEN.match(self._ddl, self._offset)
        if found is None:
            rest = self._ddl[self._offset :]
            at = self._offset + len(rest) - len(rest.lstrip())
            self._fail(f"{self._ddl[at]!r} can't be read; put unusual names into `back-quotes`", _Token("", "", at + 1))
        self._offset = found.end()
        kind = str(found.lastgroup)
        text = found[kind]
        return _Token(kind, text.replace("``", "`") if kind == "quoted" else text, found.start(kind) + 1)

    @staticmethod
    def _shown(token: _Token) -> str:
        return "the text ends" if token.kind == "end" else f'"{token.text}"'

    def _fail(self, problem: str, at: _Token) -> NoReturn:
        shown = self._ddl if len(self._ddl) <= 300 else self._ddl[:300] + "..."
        raise ConfigurationError(f"The type {shown!r} can't be read at character {at.position}: {problem}.")
