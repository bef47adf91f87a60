"""Tests that need no JVM, no broker and no network: the promises of the protocol, one by one."""
