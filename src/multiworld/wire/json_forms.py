"""How values of a type look in JSON, decided from type hints: what a message may have as a field. Pure."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Union

MAX_DEPTH: Final = 64
"""How deeply a value of type ``Json`` may be nested."""
LEAST_INT, GREATEST_INT = -(1 << 63), (1 << 64) - 1  # what 64 bits hold, signed or not
PLAIN_BITS: Final = 63  # of whole numbers that need no closer look
NESTED_TAG: Final = "kind"
SHOWN: Final = 60  # characters of what a stranger has sent

if TYPE_CHECKING:
    Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
else:

    class Json:  # typing cannot evaluate an alias of itself at run time
        """Any JSON: for what a message only passes on, as the fields of an event."""


KINDS: dict[type, str] = {}
"""What the wire calls each class of messages."""

SPARSE: set[type] = set()
"""Classes whose fields are left out while they have their defaults."""

REST: Final[Mapping[str, bool]] = types.MappingProxyType({"rest": True})
"""The metadata of a field that holds, by name, what JSON has beside the other fields."""


class RefusalError(Exception):
    """A value does not fit; what stands around it adds where it is, from the inside to the outside."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why, self._path = why, ""

    def inside(self, name: str) -> RefusalError:
        rest = self._path if not self._path or self._path.startswith("[") else f".{self._path}"
        self._path = name[:SHOWN] + rest
        return self

    def at(self, index: int) -> RefusalError:
        return self.inside(f"[{index}]")

    @property
    def field(self) -> str:
        return self._path


@dataclasses.dataclass(frozen=True)
class Form:
    """How values of one type look in JSON. Both ways raise RefusalError."""

    json_types: tuple[type, ...]
    """What it is in JSON; what follows the first is taken where no other form of a union takes it."""
    classes: tuple[type, ...]
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    plain: frozenset[type] = frozenset()
    """Values of these types are the same in JSON, and need no look, but for the length of whole numbers."""


def shown_type(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a whole number", float: "a number", str: "a string"}
    return {**names, list: "an array", dict: "an object"}.get(type(value), type(value).__name__)


def _scalar(cls: type, needed: str) -> Form:
    def check(value: Any) -> Any:
        if type(value) is not cls:
            raise RefusalError(f"{needed} is needed, not {shown_type(value)}")
        return value

    return Form((cls,), (cls,), check, check, frozenset((cls,)))


def _pack_str(value: Any) -> Any:
    if not isinstance(value, str):
        raise RefusalError(f"a string is needed, not {shown_type(value)}")
    return str(value) if type(value) is not str else value


def _pack_int(value: Any) -> Any:
    if type(value) is not int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise RefusalError(f"a whole number is needed, not {shown_type(value)}")
        value = int(value)  # of an IntEnum, as a signal's number is
    return _unpack_int(value)


def _unpack_int(value: Any) -> Any:
    if type(value) is not int:
        raise RefusalError(f"a whole number is needed, not {shown_type(value)}")
    if not LEAST_INT <= value <= GREATEST_INT:
        raise RefusalError("a whole number of more than 64 bits")
    return value


def _pack_float(value: Any) -> Any:
    return _unpack_float(value) if type(value) is float else _pack_int(value)


def _unpack_float(value: Any) -> Any:
    if type(value) is float:
        if not math.isfinite(value):
            raise RefusalError("a number that is not finite")
        return value
    if type(value) is not int:
        raise RefusalError(f"a number is needed, not {shown_type(value)}")
    return float(_unpack_int(value))


def _pack_bytes(value: Any) -> Any:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise RefusalError(f"bytes are needed, not {shown_type(value)}")
    return base64.b64encode(value).decode()


def _unpack_bytes(value: Any) -> Any:
    if type(value) is not str:
        raise RefusalError(f"bytes in base64 are needed, not {shown_type(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise RefusalError("bytes in base64 are needed") from None


def _json(value: Any, depth: int = 0) -> Any:
    """Return a value of any kind that JSON has, as the decoder would."""
    if value is None or type(value) in (str, bool):
        return value
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, float):
        return _unpack_float(float(value))
    if isinstance(value, str):
        return str(value)
    if depth == MAX_DEPTH:
        raise RefusalError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, (list, tuple)):
        return _each(value, lambda each: _json(each, depth + 1))
    if isinstance(value, Mapping):
        return _each_of_mapping(value, lambda each: _json(each, depth + 1))
    raise RefusalError(f"JSON is needed, not {shown_type(value)}")


def is_json(value: object) -> bool:
    """Whether a field of type ``Json`` can hold it."""
    try:
        _json(value)
    except RefusalError:
        return False
    return True


_SIMPLE: dict[object, Form] = {
    bool: _scalar(bool, "a boolean"),
    int: Form((int,), (int,), _pack_int, _unpack_int, frozenset((int,))),
    float: Form((float, int), (float, int), _pack_float, _unpack_float),
    str: dataclasses.replace(_scalar(str, "a string"), pack=_pack_str),
    bytes: Form((str,), (bytes, bytearray, memoryview), _pack_bytes, _unpack_bytes),
    type(None): _scalar(type(None), "null"),
    Json: Form((type(None), bool, int, float, str, list, dict), (object,), _json, _json),
}


def _form(hint: Any) -> Form:
    """Return how values of a type look. Raises TypeError for types that no message may have."""
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is frozenset:
        return _frozenset(_form(arguments[0]))
    if isinstance(origin, type) and origin is Mapping and arguments[0] is str:
        return _mapping(_form(arguments[1]))
    if origin is Literal:
        return _literal(arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _named_tuple(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return record_form(hint)
    raise TypeError(f"a message cannot have a field of type {hint}")


def _form_of_field(hint: Any, metadata: Mapping[str, Any]) -> Form:
    form = _form(hint)
    if "none" not in metadata:
        return form
    none = metadata["none"]
    return dataclasses.replace(
        form,
        pack=lambda value: none if value is None else form.pack(value),
        unpack=lambda value: None if value == none else form.unpack(value),
        plain=frozenset(),
    )


_RECORDS: dict[type, _Record] = {}


def record_form(cls: type) -> Form:
    """Return the form of a frozen dataclass. Its fields are looked at when it is first used: it may contain itself."""
    record = _RECORDS.get(cls)
    if record is None:
        if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise TypeError(f"{cls.__name__} is no frozen dataclass")
        record = _RECORDS.setdefault(cls, _Record(cls))
    return record.form


def look_at(classes: Iterable[type]) -> None:
    """Look at the fields of frozen dataclasses, and of what they contain, before they are used."""
    for cls in classes:
        record_form(cls)
    while unknown := [record for record in _RECORDS.values() if record.is_unknown]:  # each may contain others
        for record in unknown:
            record.look()


class _Record:
    """Packs and unpacks one frozen dataclass."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._values: Callable[[Any], tuple[Any, ...]] | None = None
        self.form = Form((dict,), (cls,), self.pack, self.unpack)

    @property
    def is_unknown(self) -> bool:
        """Whether its fields were not looked at yet."""
        return self._values is None

    def look(self) -> None:
        hints = typing.get_type_hints(self._cls)
        fields = [field for field in dataclasses.fields(self._cls) if field.init]
        self._rest = next((field.name for field in fields if field.metadata.get("rest")), None)
        fields = [field for field in fields if field.name != self._rest]
        self._names = tuple(field.name for field in fields)
        self._shown = tuple(field.metadata.get("json", field.name) for field in fields)
        self._defaults = {field.name: _default(field) for field in fields if self._cls in SPARSE}
        forms = [(field, _form_of_field(hints[field.name], field.metadata)) for field in fields]
        missing = dataclasses.MISSING
        self._packs = [form.pack for _, form in forms]
        self._unpacks = [
            (field.name, shown, form.unpack, field.default is missing and field.default_factory is missing)
            for (field, form), shown in zip(forms, self._shown, strict=True)
        ]
        self._plain = [form.plain for _, form in forms]
        self._ints: dict[tuple[type, ...], list[str] | None] = {}  # which are, if all is plain: by the types of values
        self._values = _getter(self._names)

    def pack(self, value: Any) -> dict[str, Any]:
        if type(value) is not self._cls:
            raise RefusalError(f"{self._cls.__name__} is needed, not {type(value).__name__}")
        if self._values is None:
            self.look()
            assert self._values is not None
        fields = getattr(value, "__dict__", {})
        packed = dict(fields) if self._is_plain(fields) else self._each_packed(self._values(value))
        if self._defaults:
            for name, shown in zip(self._names, self._shown, strict=True):
                if getattr(value, name) == self._defaults[name]:
                    del packed[shown]
        if self._rest is not None:
            rest = _each_of_mapping(getattr(value, self._rest), _json)
            for name in rest.keys() & set(self._shown):
                raise RefusalError("a field has this name already").inside(name)
            packed |= rest
        return packed

    def _each_packed(self, values: Sequence[Any]) -> dict[str, Any]:
        packed = {}
        for shown, pack, value in zip(self._shown, self._packs, values, strict=True):
            try:
                packed[shown] = pack(value)
            except RefusalError as refusal:
                raise refusal.inside(shown) from None
        return packed

    def _is_plain(self, fields: dict[str, Any]) -> bool:
        """Whether these are the fields in their order, and look the same in JSON: a roster has thousands of such."""
        if tuple(fields) != self._shown or self._shown != self._names:
            return False
        types_of_values = tuple(map(type, fields.values()))
        try:
            ints = self._ints[types_of_values]
        except KeyError:
            fits = all(map(frozenset.__contains__, self._plain, types_of_values))
            found = [name for name, cls in zip(self._names, types_of_values, strict=True) if cls is int]
            self._ints[types_of_values] = ints = found if fits else None
        if ints is None:
            return False
        for name in ints:  # noqa: SIM110 (a generator takes twice as long)
            if fields[name].bit_length() > PLAIN_BITS:
                return False
        return True

    def unpack(self, fields: Any) -> Any:
        if type(fields) is not dict:
            raise RefusalError(f"an object is needed, not {shown_type(fields)}")
        if self._values is None:
            self.look()
        arguments = fields if self._is_plain(fields) else self._each_unpacked(fields)
        if self._rest is not None:
            others = {name: each for name, each in fields.items() if name not in self._shown}
            arguments = {**arguments, self._rest: _each_of_mapping(others, _json)}
        try:
            return self._cls(**arguments)
        except (TypeError, ValueError) as error:  # its __post_init__ wants other values
            raise RefusalError(str(error)[:SHOWN]) from None

    def _each_unpacked(self, fields: dict[str, Any]) -> dict[str, Any]:
        arguments = {}
        for name, shown, unpack, is_needed in self._unpacks:
            try:
                if shown in fields:
                    arguments[name] = unpack(fields[shown])
                elif is_needed:
                    raise RefusalError("it is missing")
            except RefusalError as refusal:
                raise refusal.inside(shown) from None
        return arguments


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return MISSING, which no value equals, if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _each(values: Iterable[Any], convert: Callable[[Any], Any], plain: frozenset[type] = frozenset()) -> list[Any]:
    if plain and int not in plain and plain.issuperset(map(type, values)):
        return list(values)
    done: list[Any] = []
    try:
        for value in values:
            done.append(convert(value))  # noqa: PERF401 (its length says where it failed)
    except RefusalError as refusal:
        raise refusal.at(len(done)) from None
    return done


def _each_of_mapping(values: Mapping[Any, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise RefusalError(f"a string is needed as a key, not {shown_type(key)}")
        try:
            done[key] = convert(value)
        except RefusalError as refusal:
            raise refusal.inside(key) from None
    return done


def _check_array(value: Any, length: int | None = None) -> None:
    if type(value) is not list:
        raise RefusalError(f"an array is needed, not {shown_type(value)}")
    if length is not None and len(value) != length:
        raise RefusalError(f"an array of {length} is needed, not of {len(value)}")


def _tuple(arguments: tuple[Any, ...]) -> Form:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        return _fixed_tuple([_form(argument) for argument in arguments], tuple, (tuple,))
    item = _form(arguments[0])

    def pack(value: Any) -> Any:
        if not isinstance(value, (tuple, list)):
            raise RefusalError(f"a tuple is needed, not {shown_type(value)}")
        return _each(value, item.pack, item.plain)

    def unpack(value: Any) -> Any:
        _check_array(value)
        return tuple(_each(value, item.unpack, item.plain))

    return Form((list,), (tuple, list), pack, unpack)


def _fixed_tuple(items: Sequence[Form], make: Callable[[list[Any]], Any], classes: tuple[type, ...]) -> Form:
    def convert(values: Sequence[Any], ways: Iterable[Callable[[Any], Any]]) -> list[Any]:
        following = iter(ways)
        return _each(values, lambda value: next(following)(value))

    def pack(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != len(items):
            raise RefusalError(f"a tuple of {len(items)} is needed")
        return convert(value, (item.pack for item in items))

    def unpack(value: Any) -> Any:
        _check_array(value, len(items))
        return make(convert(value, (item.unpack for item in items)))

    return Form((list,), classes, pack, unpack)


def _named_tuple(cls: Any) -> Form:
    hints = typing.get_type_hints(cls)
    return _fixed_tuple([_form(hints[name]) for name in cls._fields], cls._make, (cls,))


def _frozenset(item: Form) -> Form:
    def pack(value: Any) -> Any:
        if not isinstance(value, (frozenset, set)):
            raise RefusalError(f"a set is needed, not {shown_type(value)}")
        return sorted(_each(value, item.pack), key=repr)  # the same set, the same bytes

    def unpack(value: Any) -> Any:
        _check_array(value)
        try:
            return frozenset(_each(value, item.unpack))
        except TypeError:
            raise RefusalError("values are needed that a set can hold") from None

    return Form((list,), (frozenset, set), pack, unpack)


def _mapping(item: Form) -> Form:
    def pack(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise RefusalError(f"a mapping is needed, not {shown_type(value)}")
        return _each_of_mapping(value, item.pack)

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise RefusalError(f"an object is needed, not {shown_type(value)}")
        return _each_of_mapping(value, item.unpack)

    return Form((dict,), (Mapping,), pack, unpack)


def _literal(texts: Sequence[Any]) -> Form:
    if not all(type(text) is str for text in texts):
        raise TypeError(f"not all of {texts} are strings")

    def check(value: Any) -> Any:
        if type(value) is not str or value not in texts:
            raise RefusalError(f"one of {', '.join(texts)} is needed")
        return value

    return Form((str,), (str,), check, check)


def _enum(cls: type[enum.Enum]) -> Form:
    kinds = {type(member.value) for member in cls}
    if kinds not in ({str}, {int}):
        raise TypeError(f"the values of {cls.__name__} are neither all strings nor all whole numbers")
    members: dict[Any, enum.Enum] = {member.value: member for member in cls}

    def pack(value: Any) -> Any:
        if not isinstance(value, cls):
            raise RefusalError(f"{cls.__name__} is needed, not {shown_type(value)}")
        return value.value

    def unpack(value: Any) -> Any:
        if type(value) not in kinds or value not in members:  # True is no 1
            raise RefusalError(f"no value of {cls.__name__}")
        return members[value]

    return Form(tuple(kinds), (cls,), pack, unpack)


def by_kind(classes: Sequence[type], tag: str) -> dict[str, Any]:
    """Return classes by their kinds. Raises TypeError if they cannot be told apart."""
    without = [cls.__name__ for cls in classes if cls not in KINDS]
    if without:
        raise TypeError(f"a kind is missing: {', '.join(without)}")
    found = {KINDS[cls]: cls for cls in classes}
    if len(found) < len(classes):
        raise TypeError(f"two of {', '.join(cls.__name__ for cls in classes)} are of the same kind")
    for cls in classes:
        if any(
            field.metadata.get("json", field.name) == tag or field.metadata.get("rest")
            for field in dataclasses.fields(cls)
        ):
            raise TypeError(f"{cls.__name__} has a field {tag!r}, or may, where its kind stands")
    return found


def _tagged(classes: Sequence[type]) -> Form:
    """Return the form of several dataclasses, each of which says its kind."""
    kinds = by_kind(classes, NESTED_TAG)

    def pack(value: Any) -> Any:
        return {NESTED_TAG: KINDS[type(value)], **record_form(type(value)).pack(value)}

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise RefusalError(f"an object is needed, not {shown_type(value)}")
        kind = value.get(NESTED_TAG)
        if type(kind) is not str or kind not in kinds:
            raise RefusalError(f"one of {', '.join(kinds)} is needed").inside(NESTED_TAG)
        return record_form(kinds[kind]).unpack(value)

    return Form((dict,), tuple(classes), pack, unpack)


def _union(hints: Sequence[Any]) -> Form:
    records = [hint for hint in hints if isinstance(hint, type) and dataclasses.is_dataclass(hint)]
    forms = [_form(hint) for hint in hints if len(records) < 2 or hint not in records]
    if len(records) > 1:
        forms.append(_tagged(records))
    by_json_type: dict[type, Form] = {}
    for form in forms:
        if form.json_types[0] in by_json_type:
            raise TypeError(f"two of {', '.join(str(hint) for hint in hints)} look the same in JSON")
        by_json_type[form.json_types[0]] = form
    for form in forms:
        for json_type in form.json_types[1:]:
            by_json_type.setdefault(json_type, form)
    by_class = {cls: form for form in reversed(forms) for cls in form.classes}

    def pack(value: Any) -> Any:
        form = by_class.get(type(value))
        if form is None:
            form = next((form for form in forms if isinstance(value, form.classes)), None)
        if form is None:
            raise RefusalError(f"{shown_type(value)} is none of what may stand here")
        return form.pack(value)

    def unpack(value: Any) -> Any:
        form = by_json_type.get(type(value))
        if form is None:
            raise RefusalError(f"{shown_type(value)} is none of what may stand here")
        return form.unpack(value)

    plain = frozenset().union(*(form.plain for form in forms))
    return Form(tuple(by_json_type), tuple(by_class), pack, unpack, plain)
