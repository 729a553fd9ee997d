"""Traced objects and NNI's JSON: what is dumped is loaded again."""

import collections
import datetime
import enum
import json
import os
import pickle
import string
import subprocess
import sys
import textwrap
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

import nni
from nni.common.serializer import (
    PayloadTooLarge,
    SerializableObject,
    is_traceable,
    is_wrapped_with_trace,
)


class Plain:
    """A class that is not traced."""

    def __init__(self, size=3):
        self.size = size

    def __eq__(self, other):
        return type(self) is type(other) and self.size == other.size


@nni.trace
class Layer:
    """A layer of a model."""

    def __init__(self, size, activation="relu", *, children=()):
        self.size = size
        self.children = children
        if isinstance(children, list):
            children.append("changed by the class")


@nni.trace
class Deep(Layer):
    """Both the class and its base are traced."""

    def __init__(self, depth):
        super().__init__(size=depth * 10)
        self.depth = depth


class Untraced(Layer):
    """Only the base is traced."""

    def __init__(self):
        super().__init__(1)


@nni.trace
def make_layer(size, scale=2):
    return Layer(size * scale)


@nni.trace
def make_list(count):
    return list(range(count))


@nni.trace
def make_plain(size):
    return Plain(size)


@nni.trace
def make_function():
    return len


@nni.trace
def make_nothing(count):
    pass


class Custom:
    """A class with its own form."""

    def __init__(self, value):
        self.value = value

    def _dump(self):
        return {"value": [self.value]}

    @staticmethod
    def _load(value):
        return Custom(value[0])


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, '{"a": [1, 2.5, null, true, "\\u00fc"]}'),
        (float("inf"), "Infinity"),
        (Path("a/b"), '{"__pathlib__": "a/b"}'),
        ({2, 1}, '{"__set__": [1, 2]}'),
        (1 + 2j, '{"__complex__": [1.0, 2.0]}'),
        (Decimal("1.50"), '{"__decimal__": "1.50"}'),
        (Fraction(1, 3), '{"__fraction__": true, "numerator": 1, "denominator": 3}'),
        (datetime.date(2020, 1, 2), '{"__date__": null, "year": 2020, "month": 1, "day": 2}'),
        (
            datetime.datetime(2020, 1, 2, 3, 0, 5),
            '{"__datetime__": null, "year": 2020, "month": 1, "day": 2, "hour": 3, "second": 5}',
        ),
        (datetime.time(1, 2), '{"__time__": null, "hour": 1, "minute": 2}'),
        (datetime.timedelta(days=1), '{"__timedelta__": null, "days": 1}'),
        (len, '{"__nni_type__": "path:builtins.len"}'),
        (dict, '{"__nni_type__": "path:builtins.dict"}'),
        (uuid.SafeUUID.safe, None),
        (Color.RED, None),
    ],
)
def test_a_value_comes_back_equal(value, text):
    dumped = nni.dump(value)
    assert nni.load(dumped) == value
    if text is not None:
        assert dumped == text


def test_some_types_become_those_of_json():
    assert nni.dump([(1, 2), {1: 2}, Level.LOW, collections.OrderedDict(a=1)]) == '[[1, 2], {"1": 2}, 1, {"a": 1}]'


def test_arrays_and_numbers_of_numpy_come_back():
    numpy = pytest.importorskip("numpy")
    value = {"a": numpy.arange(6.0).reshape(2, 3), "b": numpy.array(["x", "y"]), "empty": numpy.zeros((0, 2))}
    loaded = nni.load(nni.dump(value))
    for name, array in value.items():
        assert numpy.array_equal(loaded[name], array) and loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
    assert nni.dump([numpy.float32(1.5), numpy.int64(3), numpy.bool_(True)]) == "[1.5, 3, true]"
    fortran = nni.load(nni.dump(numpy.asfortranarray(value["a"])))
    assert numpy.array_equal(fortran, value["a"]) and fortran.flags["F_CONTIGUOUS"]


def test_a_traced_object_remembers_its_arguments_and_comes_back():
    children = [Layer(1)]
    layer = Layer(5, children=children)
    assert isinstance(layer, Layer) and layer.trace_symbol is Layer.__wrapped__
    assert (layer.trace_args, layer.trace_kwargs) == ([], {"size": 5, "children": children})
    assert len(children) == 1, "the class gets a copy"
    assert (Layer.__name__, Layer.__doc__) == ("Layer", "A layer of a model.")
    again = nni.load(nni.dump({"model": [layer]}))["model"][0]
    assert isinstance(again, Layer) and again.size == 5
    assert again.trace_kwargs["children"][0].trace_kwargs == {"size": 1}


def test_a_copy_can_be_changed_before_it_is_made():
    copied = Layer(5).trace_copy()
    assert repr(copied) == "SerializableObject(type=Layer, size=5)"
    copied.trace_kwargs["size"] = 7
    assert (copied.get().size, type(copied.get(traceable=False))) == (7, Layer.__wrapped__)
    assert copied.get().trace_kwargs == {"size": 7}
    assert nni.load(nni.dump(copied)).size == 7


def test_a_function_traces_what_it_returns():
    made = make_layer(2)
    assert (made.size, made.trace_kwargs, made.trace_symbol.__name__) == (4, {"size": 2}, "make_layer")
    assert isinstance(made, Layer)
    assert nni.load(nni.dump(made)).size == 4
    assert (make_list(3), make_list(3).trace_kwargs) == ([0, 1, 2], {"count": 3})
    # As in NNI, JSON's own types lose their trace.
    assert nni.dump(make_list(3)) == "[0, 1, 2]"
    assert isinstance(make_nothing(1), SerializableObject)
    with pytest.raises(TypeError, match="a function or a module cannot be traced"):
        make_function()


def test_a_class_of_another_package_is_traced_without_changing_it():
    formatter = nni.trace(string.Formatter)()
    assert nni.dump(formatter) == '{"__symbol__": "path:string.Formatter"}'
    assert isinstance(nni.load(nni.dump(formatter)), string.Formatter)
    assert not is_wrapped_with_trace(string.Formatter) and not is_traceable(string.Formatter())
    counter = nni.trace(Plain)(size=2)
    assert nni.load(nni.dump(counter)).size == 2


def test_arguments_keep_their_places_where_they_have_no_names():
    @nni.trace
    def gather(first, *rest, **named):
        return Plain((first, rest, named))

    made = gather(1, 2, 3, a=4)
    assert (made.size, made.trace_args, made.trace_kwargs) == ((1, (2, 3), {"a": 4}), [1, 2, 3], {"a": 4})
    assert gather(1).trace_kwargs == {"first": 1}

    @nni.trace(kw_only=False)
    def take(values):
        return Plain(list(values))

    made = take(value for value in (1, 2))
    assert (made.size, made.trace_args) == ([1, 2], [[1, 2]])
    with pytest.raises(TypeError, match="argument"):
        Layer(1, "relu", 3)


def test_subclasses_of_traced_classes():
    deep = Deep(2)
    assert (deep.size, deep.trace_kwargs) == (20, {"depth": 2})
    assert isinstance(nni.load(nni.dump(deep)), Deep)
    assert not is_traceable(Untraced()) and Untraced().size == 1
    assert is_wrapped_with_trace(Layer) and not is_wrapped_with_trace(Untraced)
    assert is_traceable(Layer) and not is_traceable(Layer, must_be_instance=True)
    assert nni.trace(Layer) is Layer


def test_a_traced_object_can_be_pickled():
    for value in (Deep(2), make_layer(2), make_plain(2)):
        again = pickle.loads(pickle.dumps(value))
        assert (again.size, again.trace_kwargs) == (value.size, value.trace_kwargs)


def test_other_objects_are_pickled_or_use_their_own_form():
    assert nni.load(nni.dump(Plain(4))) == Plain(4)
    assert nni.load(nni.dump(Layer(6), use_trace=False)).size == 6
    custom = nni.dump(Custom(3))
    assert json.loads(custom)["value"] == [3]
    assert nni.load(custom).value == 3
    with pytest.raises(PayloadTooLarge, match=r"@nni.trace, or raise pickle_size_limit"):
        nni.dump(Plain("x" * 10000))
    assert nni.load(nni.dump(Plain("x" * 10000), pickle_size_limit=-1)).size == "x" * 10000
    with pytest.raises(TypeError, match="of the type bytes, cannot be dumped"):
        nni.dump(b"bytes")


def test_files_and_comments(tmp_path):
    file = tmp_path / "a.json"
    nni.dump({"b": 1, "a": "# no // comment"}, file, indent=2, sort_keys=True)
    assert file.read_text().startswith('{\n  "a"')
    assert nni.load(fp=file) == nni.load(fp=file.open()) == {"b": 1, "a": "# no // comment"}
    assert nni.load('{"a": 1, # one\n "b": "\\" // x" // two\n}') == {"a": 1, "b": '" // x'}
    with pytest.raises(ValueError, match="Expecting"):
        nni.load('{"a": 1 # one\n}', ignore_comments=False)
    with pytest.raises(TypeError, match=r"load\(fp=file\)"):
        nni.load(file.open())
    with pytest.raises(TypeError, match="needs the JSON, or a file"):
        nni.load()


def test_only_classes_and_functions_are_traced():
    with pytest.raises(TypeError, match="neither a class nor a function"):
        nni.trace(3)


def test_tracing_can_be_disabled(monkeypatch):
    monkeypatch.setenv("NNI_TRACE_FLAG", "DISABLE")
    assert nni.trace(Plain) is Plain


#: A program that dumps values, and loads those that the other package has dumped.
SHARED = """
import collections, datetime, decimal, fractions, json, pathlib, string, sys, uuid, warnings
warnings.simplefilter("ignore")
import nni
values = [
    pathlib.Path("a/b"), {1, 2}, 1 + 2j, decimal.Decimal("1.5"), fractions.Fraction(1, 3),
    datetime.datetime(2020, 1, 2, 3, 4, 5), datetime.date(2020, 1, 2), datetime.timedelta(1, 2),
    uuid.SafeUUID.safe,
    len, collections.Counter, nni.trace(string.Template)(template="$x"), float("nan"), (1, 2), True,
    {"deep": [nni.trace(string.Formatter)()]},
]
if sys.argv[1:]:
    for text in json.load(open(sys.argv[1])):
        value = nni.load(text)
        print(type(value).__name__, nni.dump(value, sort_keys=True))
else:
    print(json.dumps([nni.dump(value) for value in values]))
"""


@pytest.mark.skipif("TRIALKEEPER_TEST_NNI_PYTHON" not in os.environ, reason="needs TRIALKEEPER_TEST_NNI_PYTHON")
def test_each_package_loads_what_the_other_has_dumped(tmp_path):
    script = tmp_path / "both.py"
    script.write_text(textwrap.dedent(SHARED))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pythons = {
        "ours": (sys.executable, dict(os.environ)),
        "nni": (os.environ["TRIALKEEPER_TEST_NNI_PYTHON"], clean),
    }
    dumps = {}
    for name, (python, env) in pythons.items():
        dumps[name] = subprocess.check_output([python, script], text=True, env={**env, "HOME": str(tmp_path)})
    assert [json.loads(text) for text in json.loads(dumps["ours"])[:-4]] == [
        json.loads(text) for text in json.loads(dumps["nni"])[:-4]
    ]
    loaded = []
    for python, env in pythons.values():
        for source in dumps:
            (tmp_path / "dump.json").write_text(dumps[source])
            command = [python, script, tmp_path / "dump.json"]
            loaded.append(subprocess.check_output(command, text=True, env={**env, "HOME": str(tmp_path)}))
    assert loaded[1:] == loaded[:1] * 3
