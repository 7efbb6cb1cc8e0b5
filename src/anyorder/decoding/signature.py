"""The signature: one string that says how a trajectory or a score was made. It can be parsed back.

`order:outer-in:stride=2|schedule:one|revision:none|beam:1|length:gold|seed:1|version:anyorder.0.2.0`

A key ends at its first colon, so values may contain colons; `|`, `%` and line breaks in values are escaped.
"""

from collections.abc import Iterator, Mapping

from anyorder.errors import InputError

_ESCAPES = {"%": "%25", "|": "%7C", "\n": "%0A", "\r": "%0D"}
_ESCAPED = str.maketrans(_ESCAPES)


class Signature(Mapping[str, str]):
    """Named settings in a fixed order.

    A key may not contain `:` or `|`; a value may contain anything.

    >>> signature = Signature(order="outer-in:stride=2", seed=1)
    >>> str(signature)
    'order:outer-in:stride=2|seed:1'
    >>> Signature.parse("order:outer-in:stride=2|seed:1") == signature
    True
    """

    def __init__(self, settings: Mapping[str, object] | None = None, **more: object):
        self._settings = {key: str(value) for key, value in {**(settings or {}), **more}.items()}
        for key in self._settings:
            if not key or any(mark in key for mark in ":|%\n\r"):
                raise ValueError(f"{key!r} cannot be a key of a signature")

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """The inverse of `str`; an `InputError` if it is not a signature. Signatures of version 0.1.0 parse too."""
        settings: dict[str, str] = {}
        for part in filter(None, text.split("|")):
            key, colon, value = part.partition(":")
            if not colon or not key:
                raise InputError(f"'{part}' is not part of a signature: expected key:value")
            for mark, escaped in reversed(_ESCAPES.items()):
                value = value.replace(escaped, mark)
            # Version 0.1.0 put sacreBLEU's version next to its own.
            settings[f"bleu.{key}" if key in settings else key] = value
        return cls(settings)

    def with_settings(self, prefix: str = "", **more: object) -> "Signature":
        """This signature with more settings appended; `prefix` is prepended to their keys."""
        return Signature({**self._settings, **{f"{prefix}{key}": value for key, value in more.items()}})

    def __getitem__(self, key: str) -> str:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return "|".join(f"{key}:{value.translate(_ESCAPED)}" for key, value in self._settings.items())

    def __repr__(self) -> str:
        return f"Signature.parse({str(self)!r})"
