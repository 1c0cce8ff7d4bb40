"""Names and what they stand for: bounds, sampling strategies, architectures, data sets."""

import re
from collections.abc import Mapping
from typing import TypeVar

from sween.errors import BadInput, UnknownName

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries by name.

    Args:
        kind: what an entry is, for errors.
        entries: built-in ones, whose names cannot be registered again.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        super().__init__(entries)
        self.kind, self.built_in = kind, frozenset(entries)

    def add(self, name: str, entry: Entry) -> None:
        """Register an entry, or replace one; refuse names that no folder or table could have."""
        taken = name in self.built_in
        if taken or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name, re.ASCII):
            raise BadInput(
                f"{self.kind} name",
                expected="one that is not built in" if taken else "letters, digits and ._+-",
                got=repr(name),
                fix="choose another name",
            )
        self[name] = entry

    def find(self, name: str) -> Entry:
        """The entry of a name; refuse an unknown one."""
        if not isinstance(name, str) or name not in self:
            raise UnknownName(self.kind, name, self)
        return self[name]
