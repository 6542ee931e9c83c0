"""Files of torch.save: nothing in them runs, nothing outgrows them, and what torch itself writes is read."""

from __future__ import annotations

import importlib.util
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from controller.formats import Reading, read_trace
from controller.formats.pickles import Numbers, TensorRef, read_pickle
from controller.formats.torch_file import Tensor, plain_list, read_torch
from tests.torch_files import archive, save

pytestmark = pytest.mark.filterwarnings("error")


class Calls:
    """Unpickling it calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


class State:
    """Unpickling it sets its state, which runs."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.path,), {"x": 1}

    def __setstate__(self, _state: Any) -> None:
        Path(self.path).touch()


class Made:
    """Unpickling it makes it with __new__, which runs."""

    path = ""

    def __new__(cls, path: str) -> Made:
        Path(path).touch()
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)

    def __getstate__(self) -> None:
        return None


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def command(path: str) -> str:
    return f"touch {path}"


def _made(path: str) -> bytes:
    made = object.__new__(Made)
    made.path = path
    return pickle.dumps(made, protocol=2)


PAYLOADS: dict[str, Callable[[str], bytes]] = {
    "REDUCE of os.system": lambda path: pickle.dumps(Calls(os.system, command(path)), protocol=2),
    "REDUCE of eval": lambda path: pickle.dumps(Calls(eval, f"open({path!r}, 'w').close()"), protocol=2),
    "REDUCE of exec": lambda path: pickle.dumps(Calls(exec, f"open({path!r}, 'w').close()"), protocol=4),
    "REDUCE of subprocess": lambda path: pickle.dumps(Calls(subprocess.call, ["touch", path]), protocol=3),
    "REDUCE by a name of the stack": lambda path: pickle.dumps(Calls(os.system, command(path)), protocol=5),
    "BUILD with a state": lambda path: pickle.dumps(State(path), protocol=2),
    "NEWOBJ": _made,
    "INST": lambda path: b"\x80\x02(" + text(command(path)) + b"ios\nsystem\n.",
    "OBJ": lambda path: b"\x80\x02(cos\nsystem\n" + text(command(path)) + b"o.",
    "NEWOBJ_EX": lambda path: (b"\x80\x04c" + f"{Made.__module__}\nMade\n".encode() + text(path) + b"\x85}\x92."),
    "behind a tensor's hooks": lambda path: (
        b"\x80\x02}X\x01\x00\x00\x00a" + pickle.dumps(Calls(os.system, command(path)), protocol=2)[2:-1] + b"s."
    ),
    "as a key": lambda path: b"\x80\x02}cos\nsystem\n" + text(command(path)) + b"\x85RNs.",
    "popped again": lambda path: b"\x80\x02cos\nsystem\n" + text(command(path)) + b"\x85R0N.",
    "a global of a module's attribute": lambda path: (
        b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(command(path)) + b"\x85R."
    ),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_malicious_pickle_executes_nothing(tmp_path: Path, payload: Callable[[str], bytes]) -> None:
    sprung = tmp_path / "sprung"
    data = payload(str(sprung))
    pickle.loads(data)
    assert sprung.exists(), "the payload does not work"
    sprung.unlink()
    for inner in (data, b"\x80\x02(" + data[2:-1] + b"e." if data[1] == 2 else data):
        path = archive(tmp_path / "evil.pt", inner)
        with pytest.raises(InputError) as caught:
            read_trace(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not sprung.exists()


@pytest.mark.parametrize("payload", list(PAYLOADS.values())[:3])
def test_a_malicious_pickle_by_itself_executes_nothing(tmp_path: Path, payload: Callable[[str], bytes]) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "evil.pt"
    path.write_bytes(payload(str(sprung)))
    for kind in ("auto", "torch", "sglang", "deepep", "splits"):
        with pytest.raises(InputError):
            read_trace(path, Reading(format=kind))
    assert not sprung.exists()


def test_an_import_alone_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A global is a pair of names: the module of that name is not loaded, which would run it."""
    (tmp_path / "trap_module.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="holds neither a matrix nor a dump"):
        read_trace(archive(tmp_path / "x.pt", b"\x80\x02ctrap_module\nvalue\n."))
    assert "trap_module" not in sys.modules
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_name_is_one_line() -> None:
    """Of a storage of no module of torch's; pickletools: GLOBAL ends its two names with line feeds, and nothing else does."""
    known = b"((X\x07\x00\x00\x00storageco\rs\nX\x0cStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ."
    with pytest.raises(InputError, match=r"^m.pt names o\?s\.X\?Storage as a storage, which is none of torch's$"):
        read_pickle("m.pt", b"\x80\x02" + known)


def test_what_would_run_is_named(tmp_path: Path) -> None:
    data = pickle.dumps(Calls(os.system, "true"), protocol=2)
    with pytest.raises(InputError, match=r"calls posix\.system, which is not data and is not run"):
        read_torch(archive(tmp_path / "x.pt", data))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_values_are_what_python_reads(protocol: int) -> None:
    value = {
        "numbers": [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**70), 1.5],
        "text": "Ängström " * 50,
        "none": [None, True, False],
        "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        3: {"deep": [[["x"]]]},
        "again": (shared := ["same"]),
        "and again": shared,
    }
    assert _plain(read_pickle("x", pickle.dumps(value, protocol=protocol))) == value


def test_long_lists_of_numbers() -> None:
    value = [list(range(5000)), [-5] * 20, [1, "x", *range(70_000, 70_020), None]]
    read = read_pickle("x", pickle.dumps(value, protocol=2))
    assert any(isinstance(item, Numbers) for item in read[0])
    assert plain_list(read) == value


def test_runs_of_numbers_outside_of_lists() -> None:
    for value in (tuple(range(100)), {number: number for number in range(100)}, {"a": tuple([7] * 50)}):
        assert read_pickle("x", pickle.dumps(value, protocol=2)) == value
    # A run, a pair of its last two, and all of it popped again.
    assert read_pickle("x", b"\x80\x02" + b"K\x07" * 20 + b"\x86" + b"0" * 19 + b"K\x01.") == 1


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in plain_list(value)]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_a_tensor(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    value = read_torch(save(tmp_path / "x.pt", {"a": array, "b": [array[0] * 2.5]}))
    assert isinstance(value["a"], Tensor)
    assert np.array_equal(value["a"].array(), array)
    assert np.array_equal(value["b"][0].array(), array[0] * 2.5)


def tensor(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, numbers: int = 6, key: str = "0") -> bytes:
    def sizes(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"\x8a\x09" + value.to_bytes(9, "little", signed=True) for value in values) + b"t"

    storage = (
        b"("
        + text("storage")
        + b"ctorch\nLongStorage\n"
        + text(key)
        + text("cpu")
        + b"J"
        + struct.pack("<i", numbers)
        + b"tQ"
    )
    place = b"\x8a\x09" + offset.to_bytes(9, "little", signed=True)
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + place
        + sizes(shape)
        + sizes(stride)
        + b"\x89Nt"
        + b"R."
    )


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "expected"),
    [
        ((2, 3), (3, 1), 0, [[0, 1, 2], [3, 4, 5]]),
        ((3, 2), (1, 3), 0, [[0, 3], [1, 4], [2, 5]]),
        ((2, 2), (3, 1), 1, [[1, 2], [4, 5]]),
        ((2, 2), (0, 1), 0, [[0, 1], [0, 1]]),
        ((), (), 3, 3),
        ((0, 5), (5, 1), 0, []),
    ],
)
def test_strides(tmp_path: Path, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, expected: Any) -> None:
    path = archive(tmp_path / "x.pt", tensor(shape, stride, offset), [np.arange(6)])
    assert read_torch(path).array().tolist() == expected


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((7,), (1,), 0),
        ((2,), (6,), 0),
        ((6,), (1,), 1),
        ((2**40,), (0,), 0),
        ((2**31, 2**31), (0, 0), 0),
        ((2**62,), (2**62,), 0),
        ((1,), (1,), 2**62),
    ],
)
def test_tensors_that_are_not_there(
    tmp_path: Path, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    path = archive(tmp_path / "x.pt", tensor(shape, stride, offset), [np.arange(6)])
    with pytest.raises(InputError, match="has not so many numbers"):
        read_torch(path).array()


def test_a_tensor_without_its_storage(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", tensor((2,), (1,), key="../../etc/passwd"), [np.arange(6)])
    with pytest.raises(InputError, match="is damaged"):
        read_torch(path).array()


BAD = {
    "empty": b"",
    "only a start": b"\x80\x02",
    "protocol 0": b"I1\n.",
    "protocol 9": b"\x80\x09N.",
    "nothing on the stack": b"\x80\x02.",
    "two on the stack": b"\x80\x02NN.",
    "a mark alone": b"\x80\x02(.",
    "no mark": b"\x80\x02Nt.",
    "append to a number": b"\x80\x02K\x01K\x02a.",
    "odd pairs": b"\x80\x02}(K\x01u.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a tuple as a key": b"\x80\x02})Ns.",
    "no such memo": b"\x80\x02h\x05.",
    "text that is cut": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a number that is cut": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "text that is no text": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "a line without end": b"\x80\x02cos",
    "a reduce of nothing": b"\x80\x02NNR.",
    "an extension": b"\x80\x02\x82\x01.",
    "a reference by text": b"\x80\x02Pstorage\n.",
    "a reference that is no storage": b"\x80\x02K\x01Q.",
    "a frame alone": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff",
    "buffers": b"\x80\x05\x97.",
    "memo without value": b"\x80\x02q\x00.",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_pickles_that_cannot_be(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_pickle("x.pt", data)
    assert str(caught.value).startswith("x.pt ")
    assert "\n" not in str(caught.value)


def test_depth_and_repetition_end_nothing(tmp_path: Path) -> None:
    """Nested a hundred thousand deep, and doubled two hundred times: read or refused, within memory."""
    deep = b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."
    wide = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(200)
    )
    tuples = b"\x80\x02N" + b"\x85" * 10**5 + b"."
    cycle = b"\x80\x02]q\x00h\x00a."
    tracemalloc.start()
    try:
        for data in (deep, wide + b"0" * 200 + b".", tuples, cycle):
            path = archive(tmp_path / "x.pt", data)
            with pytest.raises(InputError):
                read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 40 * 10**6
    finally:
        tracemalloc.stop()


def test_memory_stays_in_proportion_to_the_pickle() -> None:
    """A list of a million tokens, as SGLang's records have it: three bytes each, and no object for each."""
    data = pickle.dumps({"input_ids": list(range(1000, 65000)) * 16}, protocol=2)
    tracemalloc.start()
    try:
        value = read_pickle("x", data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(len(run.raw) for run in value["input_ids"] if isinstance(run, Numbers)) > 0.99 * len(data)
    assert peak < 2 * len(data)


def test_a_zip_that_lies(tmp_path: Path) -> None:
    compressed = tmp_path / "c.pt"
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02]" + b"0" * 10**6)
    with pytest.raises(InputError, match=r"is compressed, as torch\.save does not"):
        read_torch(compressed)
    for name in ("two", "none"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            for entry in ("a/data.pkl", "b/data.pkl") if name == "two" else ("a",):
                file.writestr(entry, b"\x80\x02N.")
        with pytest.raises(InputError, match=r"without one data\.pkl"):
            read_torch(tmp_path / name)
    content = archive(tmp_path / "x.pt", tensor((6,), (1,)), [np.arange(6)]).read_bytes()
    (tmp_path / "flipped").write_bytes(content.replace(np.arange(6).tobytes(), np.arange(6, 12).tobytes()))
    with pytest.raises(InputError, match="damaged"):
        read_torch(tmp_path / "flipped").array()


def test_every_opcode_is_either_data_or_refused() -> None:
    """All opcodes of Python's own table, one after the other, on a stack that would please them."""
    for opcode in pickletools.opcodes:
        data = b"\x80\x04(cos\nsystem\nX\x04\x00\x00\x00true\x85" + opcode.code.encode("latin-1") + b"os\nsystem\n."
        with pytest.raises(InputError):
            read_pickle("x", data)


REAL = """
import torch
big = torch.arange(60, dtype=torch.int32).reshape(3, 5, 4) % 8
records = [dict(forward_pass_id=n, rank=0, gatherer_key="primary", global_physical_count=torch.zeros(3, 8, dtype=torch.int32),
    topk_ids_of_layer=big[:, :4] if n else big.clone(), input_ids=list(range(3000)), positions=[70000] * 9, extend_seq_lens=[4],
    forward_mode=1, misc_objects=[{"num_tokens_per_rank": torch.tensor([1, 2])}]) for n in range(2)]
torch.save({"records": records, "last_physical_to_logical_map": torch.arange(8).expand(3, 8)}, "dump.pt")
torch.save(torch.arange(4.0).reshape(2, 2).t(), "matrix.pt")
torch.save({"a": 1}, "legacy.pt", _use_new_zipfile_serialization=False)
torch.save(torch.nn.Linear(2, 2), "module.pt")
"""


def test_what_torch_itself_writes(tmp_path: Path) -> None:
    interpreters = [sys.executable] if importlib.util.find_spec("torch") else ["/usr/bin/python3"]
    made = subprocess.run([*interpreters, "-c", REAL], cwd=tmp_path, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip("needs torch, here or in /usr/bin/python3, such as Debian's python3-torch")
    value = read_torch(tmp_path / "dump.pt")
    big = np.arange(60).reshape(3, 5, 4) % 8
    assert np.array_equal(value["records"][0]["topk_ids_of_layer"].array(), big)
    assert np.array_equal(value["records"][1]["topk_ids_of_layer"].array(), big[:, :4])
    assert value["last_physical_to_logical_map"].array().tolist() == [list(range(8))] * 3
    assert plain_list(value["records"][0]["input_ids"]) == list(range(3000))
    trace = read_trace(tmp_path / "dump.pt", Reading(ranks=2, token_copies="per-expert"))
    assert trace.matrix(0).tolist() == [[12, 8], [0, 0]]
    assert read_trace(tmp_path / "matrix.pt").matrix(0).tolist() == [[0, 2], [1, 3]]
    for name, words in (("legacy.pt", "before version 1.6"), ("module.pt", "is not run")):
        with pytest.raises(InputError, match=words):
            read_trace(tmp_path / name)


def test_a_reference_is_a_description() -> None:
    value = read_pickle("x", tensor((2, 3), (3, 1)))
    assert isinstance(value, TensorRef)
    assert (value.shape, value.storage.kind, value.storage.key) == ((2, 3), "LongStorage", "0")
