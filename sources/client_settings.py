"""Settings of a Kafka client, with the secrets kept out of every message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_SECRET = re.compile(r"password|secret|jaas|token|credential|keystore\.key|certificate|private|api[._-]?key")
_WORD = re.compile(r"[^\s\"'=;,]{4,}")
_QUOTED = re.compile(r"\"([^\"]+)\"")
_HIDDEN = "[hidden]"


class ClientSettings(Mapping[str, str]):
    """An immutable mapping of client settings, without the ``kafka.`` prefix. Its ``repr`` hides what may be a secret."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)

    def __getitem__(self, key: str) -> str:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(frozenset(self._settings.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSettings) and self._settings == other._settings

    def __repr__(self) -> str:
        shown = {k: _HIDDEN if is_secret(k) else v for k, v in sorted(self._settings.items())}
        return f"ClientSettings({shown})"

    def redact(self, text: str) -> str:
        """``text`` (a message from below) without any word of a secret setting's value."""
        secrets = [value for key, value in self._settings.items() if is_secret(key) and value]
        words = {word for value in secrets for word in (value, *_QUOTED.findall(value), *_WORD.findall(value))}
        for word in sorted(words, key=len, reverse=True):
            text = text.replace(word, _HIDDEN)
        return text


def is_secret(key: str) -> bool:
    """Whether the setting's value must not be shown."""
    return _SECRET.search(key.lower()) is not None
