"""Matrix files: what is refused, in one line that names the file, and what the good ones come to."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.demand import HEADER_BYTES, MAX_HOSTS, load_demand
from controller.errors import InputError

# A warning would be a second line for the user.
pytestmark = pytest.mark.filterwarnings("error")

TOP = 2**63 - 1
NOBODY = 65534


def npy(array: np.ndarray[Any, Any], *, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def npy_with_header(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(text)) + text + data


def described(shape: str, descr: str = "'<i8'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def matrix(folder: Path, content: bytes | str, name: str = "demand.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_demand(path, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert "\r" not in line
    return line


# What to write, and what the line must say: one of the parts between the bars.
BAD_CSV = {
    "not square": ("0,1,2\n3,0,4\n", "2 x 3"),
    "tall": ("0,1\n1,0\n2,2\n", "3 x 2"),
    "ragged": ("0,1,2\n3,0\n4,5,0\n", "row 2 has 2 values, row 1 has 3"),
    "ragged below a header": ("a,b\n0,1\n1\n", "row 3 has 1 values, row 2 has 2"),
    "empty": ("", "empty"),
    "only white space": (" \r\n\n\t\n", "empty"),
    "only a header": ("a,b\n", "row 1, column 1 'a' is not a number, and if this is a header, no row follows it"),
    "text": ("all work and no play\nmakes Jack\n", "not a number"),
    "one word": ("0,1\nx,0\n", "row 2, column 1 'x' is not a number"),
    "half a header": ("a,1\n0,1\n1,0\n", "row 1, column 1 'a' is not a number"),
    "two headers": ("a,b\nc,d\n0,1\n1,0\n", "row 2, column 1 'c' is not a number"),
    "empty cell": ("0,1,1\n1,,1\n1,1,0\n", "row 2, column 2 is empty"),
    "semicolons": ("0;1\n1;0\n", "not a number"),
    "NaN": ("0,nan\n1,0\n", "row 1, column 2"),
    "infinity": ("0,1\ninf,0\n", "row 2, column 1"),
    "minus infinity": ("0,1\n-inf,0\n", "row 2, column 1"),
    "overflowing float": ("0,1e999\n1,0\n", "row 1, column 2"),
    "negative": ("0,5\n-3,0\n", "row 2, column 1 is negative"),
    "negative float": ("0,-0.5\n3,0\n", "row 1, column 2 is negative"),
    "negative on the diagonal": ("-1,1\n1,0\n", "row 1, column 1 is negative"),
    "single host": ("7\n", "single host"),
    "one value above 2^63": (f"0,{2**63}\n1,0\n", "2^63"),
    "one value below -2^63": (f"0,{-(2**70)}\n1,0\n", "row 1, column 2|2^63"),
    "one value of 400 digits": (f"0,1{'0' * 400}\n1,0\n", "2^63"),
    "one value of 400 digits beside a float": (f"0,1{'0' * 400}\n1.5,0\n", "2^63"),
    "one value of 5000 digits": (f"0,{'9' * 5000}\n1,0\n", "row 1, column 2"),
    "binary garbage": (bytes(range(256)), "neither CSV text nor NPY"),
    "a zip file": (b"PK\x03\x04\x14\x00\x06\x00\x08\x00", "damaged zip file"),
    "UTF-16": ("0,1\n1,0\n".encode("utf-16"), "neither CSV text nor NPY"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv_is_refused(tmp_path: Path, content: bytes | str, reason: str) -> None:
    path = matrix(tmp_path, content)
    line = refusal(path)
    assert str(path) in line
    assert any(part in line for part in reason.split("|"))


def test_a_refusal_stays_short_whatever_the_cell(tmp_path: Path) -> None:
    for cell in ("9" * 5000, "x" * 5000):
        assert len(refusal(matrix(tmp_path, f"0,{cell}\n1,0\n"))) < len(str(tmp_path)) + 200


BAD_NPY = {
    "not square": (npy(np.zeros((2, 3))), "2 x 3"),
    "a vector": (npy(np.zeros(4)), "square"),
    "a sequence": (npy(np.ones((2, 2, 2))), "holds 2 demands, step 0 to step 1: choose one with --steps"),
    "three dimensions": (npy(np.ones((2, 2, 3))), "2 x 2 x 3"),
    "five dimensions": (npy(np.ones((1, 1, 1, 2, 2))), "1 x 1 x 1 x 2 x 2"),
    "a scalar": (npy(np.array(5)), "square"),
    "nothing in it": (npy(np.zeros((0, 0))), "at least 2 x 2"),
    "NaN": (npy(np.array([[0, np.nan], [1, 0]])), "row 1, column 2"),
    "infinity": (npy(np.array([[0, 1], [np.inf, 0]])), "row 2, column 1"),
    "negative": (npy(np.array([[0, 1], [-1, 0]])), "row 2, column 1 is negative"),
    "single host": (npy(np.array([[3]])), "single host"),
    "above 2^63": (npy(np.array([[0, 2**63], [1, 0]], dtype=np.uint64)), "2^63"),
    "float total beyond floats": (npy(np.array([[0, 1.7e308], [1.7e308, 0]])), "2^63"),
    "more than a double holds": (npy(np.array([[0, np.longdouble("1e4000")], [1, 0]])), "row 1, column 2|2^63"),
    "truth values": (npy(np.eye(2, dtype=bool)), "bool"),
    "complex": (npy(np.eye(2, dtype=complex)), "complex"),
    "text": (npy(np.array([["0", "1"], ["1", "0"]])), "not numbers"),
    "records": (npy(np.zeros((2, 2), dtype=[("a", "<i8")])), "not numbers"),
    "truncated data": (npy(np.ones((2, 2)))[:-1], "damaged"),
    "no data": (npy_with_header(described("(2, 2)")), "damaged"),
    "truncated header": (npy(np.ones((2, 2)))[:40], "damaged"),
    "truncated length": (b"\x93NUMPY\x01\x00\x76", "damaged"),
    "magic alone": (b"\x93NUMPY", "damaged"),
    "unknown version": (npy_with_header(described("(2, 2)"), bytes(32), (9, 9)), "damaged"),
    "header is not a table": (npy_with_header("[" * 40), "damaged"),
    "header is cut": (npy_with_header(described("(2, 2)")[:-12]), "damaged"),
    "header is deep": (npy_with_header("[" * 5000), "damaged"),
    "header has no shape": (npy_with_header("{'descr': '<i8', 'fortran_order': False}"), "damaged"),
    "unknown type": (npy_with_header(described("(2, 2)", "'zz'"), bytes(32)), "damaged"),
    "shape is negative": (npy_with_header(described("(-2, -2)"), bytes(32)), "damaged"),
    "shape is text": (npy_with_header(described("'2'"), bytes(32)), "damaged"),
    "shape is no number": (npy_with_header(described("(True, 2)"), bytes(16)), "damaged"),
    "shape is beyond memory": (npy_with_header(described("(10000000, 10000000)")), "damaged|too many|square"),
    "shape is beyond integers": (npy_with_header(described("(4294967296, 4294967296)")), "damaged|too many"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_NPY.values(), ids=BAD_NPY)
def test_bad_npy_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = matrix(tmp_path, content, "demand.npy")
    line = refusal(path)
    assert str(path) in line
    assert any(part in line for part in reason.split("|"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.csv")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(matrix(tmp_path, "0,1\n1,0\n") / "demand.csv")


def test_a_name_that_no_file_can_have_is_refused() -> None:
    refusal(Path("x" * 5000))
    refusal(Path("a\0b.csv"))


def test_a_file_without_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = matrix(Path(folder), "0,1\n1,0\n")
        path.chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            try:
                os.seteuid(NOBODY)
            except OSError as error:
                pytest.skip(f"root reads every file, and cannot become another user here: {error}")
        try:
            line = refusal(path)
        finally:
            if was_root:
                os.seteuid(0)
    assert "may not be read" in line
    assert str(path) in line


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.mark.filterwarnings("error")
def test_numpys_warnings_of_old_and_odd_headers_are_not_shown(tmp_path: Path) -> None:
    """Python 2 wrote 2L for 2. An odd escape in a damaged header is one line, and no warning besides."""
    path = tmp_path / "old.npy"
    path.write_bytes(npy_with_header(described("(2L, 2L)"), bytes(32)))
    assert load_demand(path).hosts == 2
    path.write_bytes(npy_with_header("{'\\d': 1}"))
    with pytest.raises(InputError, match="damaged"):
        load_demand(path)


def test_shares_are_no_bytes_and_means_are_said(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("0,0.7\n0.3,0\n")
    with pytest.raises(InputError, match="holds shares, none above 1, and no bytes"):
        load_demand(path)
    # Means of tokens: 0.7 of 8 bytes are 5.6.
    demand = load_demand(path, unit="tokens", token_bytes=8)
    assert demand.wire_bytes.tolist() == [[0, 6 + HEADER_BYTES], [3 + HEADER_BYTES, 0]]
    assert demand.notes == (f"{path}: 2 amounts are no whole bytes, and were rounded up",)


@pytest.mark.parametrize("shape", ["(-1, 2)", "(0, -1)", f"(0, {10**30})"])
def test_npy_with_lengths_that_cannot_be_is_damaged(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "m.npy"
    path.write_bytes(npy_with_header(described(shape), bytes(32)))
    with pytest.raises(InputError, match="damaged"):
        load_demand(path)


def test_npy_with_objects_is_refused_without_unpickling(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    cells = np.empty((2, 2), dtype=object)
    cells[:] = [[0, Trap(sprung)], [1, 0]]
    path = matrix(tmp_path, npy(cells, allow_pickle=True), "demand.npy")
    np.load(path, allow_pickle=True)[0, 1].close()
    assert sprung.exists(), "the trap does not work"
    sprung.unlink()
    assert "Python objects" in refusal(path)
    assert not sprung.exists()


def test_npy_with_objects_in_records_is_refused_without_unpickling(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    data = pickle.dumps([Trap(sprung)] * 4)
    path = matrix(tmp_path, npy_with_header(described("(2, 2)", "[('a', '|O')]"), data), "demand.npy")
    assert "Python objects" in refusal(path)
    assert not sprung.exists()


def test_a_bare_pickle_is_refused_without_unpickling(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    assert "is a bare pickle, which is not read" in refusal(matrix(tmp_path, pickle.dumps(Trap(sprung)), "demand.npy"))
    assert not sprung.exists()


def test_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    assert "'packets' is not known" in refusal(matrix(tmp_path, "0,1\n1,0\n"), unit="packets")


@pytest.mark.parametrize("token_bytes", [0, -7168])
def test_tokens_need_their_size(tmp_path: Path, token_bytes: int) -> None:
    assert "token_bytes" in refusal(matrix(tmp_path, "0,1\n1,0\n"), unit="tokens", token_bytes=token_bytes)


@pytest.mark.parametrize("unit", ["bytes", "wire-bytes"])
def test_token_bytes_need_tokens(tmp_path: Path, unit: str) -> None:
    assert "token_bytes" in refusal(matrix(tmp_path, "0,1\n1,0\n"), unit=unit, token_bytes=7168)


# Values whose floats are smaller than they are: their sum in floats is below 2^63, the true one is above.
CREEPING = (2**61 + 255, 2**61 + 255, 2**61 + 255, 2**61 - 700)

TOO_MUCH = {
    "two halves": (f"0,{2**62}\n{2**62},0\n", {"unit": "wire-bytes"}),
    "2^63 exactly": (f"0,{2**63 - 100}\n100,0\n", {"unit": "wire-bytes"}),
    "above by less than floats see": (
        f"0,{CREEPING[0]},{CREEPING[1]}\n{CREEPING[2]},0,{CREEPING[3]}\n0,0,0\n",
        {"unit": "wire-bytes"},
    ),
    "by the size of a token": (f"0,{2**51}\n1,0\n", {"unit": "tokens", "token_bytes": 7168}),
    "by a huge token": (f"0,{2**32}\n1,0\n", {"unit": "tokens", "token_bytes": 2**31}),
    "by the headers": (f"0,{2**63 - 3000}\n0,0\n", {"unit": "bytes"}),
    "by the headers of all": (f"0,{2**62 - 10**6},{2**62 - 10**6}\n0,0,0\n0,0,0\n", {"unit": "bytes"}),
    "by filling up a last packet": (f"0,{TOP - 1}\n1,0\n", {"unit": "wire-bytes"}),
    "local": (f"{2**62},1\n1,{2**62}\n", {"unit": "wire-bytes"}),
    "floats": ("0,1e19\n1,0\n", {}),
    "floats by a token": ("0,1e308\n1e308,0\n", {"unit": "tokens", "token_bytes": 7168}),
}


@pytest.mark.parametrize(("content", "options"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_totals_from_2_to_the_63_are_refused(tmp_path: Path, content: str, options: dict[str, Any]) -> None:
    assert "2^63" in refusal(matrix(tmp_path, content), **options)


def test_the_largest_total_is_exact(tmp_path: Path) -> None:
    demand = load_demand(matrix(tmp_path, f"0,{TOP - 4096}\n4096,0\n"), unit="wire-bytes")
    assert demand.wire_bytes.tolist() == [[0, TOP - 4096], [4096, 0]]
    assert demand.total_bytes == TOP
    assert demand.max_port_bytes == TOP - 4096


def test_too_many_hosts_are_refused(tmp_path: Path) -> None:
    size = MAX_HOSTS + 1
    assert f"{size} hosts are too many" in refusal(matrix(tmp_path, npy(np.ones((size, size), dtype=np.int8))))


def test_as_many_hosts_as_promised_are_accepted(tmp_path: Path) -> None:
    ones = np.ones((1000, 1000), dtype=np.int8)
    demand = load_demand(matrix(tmp_path, npy(ones)), unit="tokens", token_bytes=4032)
    assert demand.hosts == 1000
    assert demand.total_bytes == 1000 * 999 * 4096
    assert demand.local_bytes == 1000 * 4032


PLAIN = [[0, 70], [80, 0]]

SPELLINGS = {
    "plain": "0,70\n80,0\n",
    "no newline at the end": "0,70\n80,0",
    "header": "h1,h2\n0,70\n80,0\n",
    "quoted header": '"to 1","to 2"\n0,70\n80,0\n',
    "CRLF": "0,70\r\n80,0\r\n",
    "CR": "0,70\r80,0\r",
    "byte order mark": "\ufeff0,70\n80,0\n",
    "byte order mark and header": "\ufeffa,b\r\n0,70\r\n80,0\r\n",
    "trailing comma": "0,70,\n80,0,\n",
    "trailing comma and header": "a,b,\n0,70,\n80,0,\n",
    "spaces": " 0 , 70\t\n  80,0 \n",
    "empty lines": "\n0,70\n\n80,0\n\n\n",
    "floats": "0.0,70.0\n8e1,-0.0\n",
    "signs and zeros in front": "-0,+70\n0080,0\n",
}


@pytest.mark.parametrize("content", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_of_one_matrix(tmp_path: Path, content: str) -> None:
    demand = load_demand(matrix(tmp_path, content), unit="wire-bytes")
    assert demand.wire_bytes.tolist() == PLAIN
    assert demand.wire_bytes.dtype == np.int64
    assert demand.notes == ()


@pytest.mark.parametrize("kind", ["u1", "i2", "<i4", ">i8", "u8", "f2", "f4", "f8", "g"])
def test_types_of_one_npy(tmp_path: Path, kind: str) -> None:
    array = np.array(PLAIN).astype(kind)
    # The name does not matter: the first bytes do.
    for order in (array, np.asfortranarray(array)):
        demand = load_demand(matrix(tmp_path, npy(order), "demand.csv"), unit="wire-bytes")
        assert demand.wire_bytes.tolist() == PLAIN
        assert demand.wire_bytes.dtype == np.int64


def test_small_types_do_not_overflow(tmp_path: Path) -> None:
    path = matrix(tmp_path, npy(np.array([[0, 255], [255, 0]], dtype=np.uint8)))
    demand = load_demand(path, unit="tokens", token_bytes=4032)
    assert demand.wire_bytes.tolist() == [[0, 255 * 4096], [255 * 4096, 0]]


def test_zero_rows_and_columns_stay(tmp_path: Path) -> None:
    demand = load_demand(matrix(tmp_path, "0,4096,0\n0,0,0\n0,8192,0\n"), unit="wire-bytes")
    assert demand.wire_bytes.tolist() == [[0, 4096, 0], [0, 0, 0], [0, 8192, 0]]
    assert demand.max_port_bytes == 12288
    assert str(demand.bottleneck([Fraction(1)] * 3)) == "receiver 1"


def test_all_zero_is_a_demand(tmp_path: Path) -> None:
    demand = load_demand(matrix(tmp_path, "0,0\n0,0\n"))
    assert demand.total_bytes == demand.max_port_bytes == 0
    assert demand.bottleneck([Fraction(1)] * 2).time_s == 0


def test_the_diagonal_is_local_and_said(tmp_path: Path) -> None:
    path = matrix(tmp_path, "3,1\n1,4\n")
    demand = load_demand(path, unit="tokens", token_bytes=4032)
    assert demand.wire_bytes.tolist() == [[0, 4096], [4096, 0]]
    assert demand.local_bytes == 7 * 4032
    (note,) = demand.notes
    assert str(path) in note
    assert f"{7 * 4032} bytes on the diagonal are local" in note


def test_traffic_inside_a_server_is_local(tmp_path: Path) -> None:
    # The last server is part full.
    rows = [[100 + 10 * i + j for j in range(5)] for i in range(5)]
    path = matrix(tmp_path, "\n".join(",".join(str(cell) for cell in row) for row in rows))
    demand = load_demand(path, unit="wire-bytes", hosts_per_server=2)
    assert demand.wire_bytes.tolist() == [
        [0, 0, 102, 103, 104],
        [0, 0, 112, 113, 114],
        [120, 121, 0, 0, 124],
        [130, 131, 0, 0, 134],
        [140, 141, 142, 143, 0],
    ]
    assert demand.local_bytes == 100 + 101 + 110 + 111 + 122 + 123 + 132 + 133 + 144
    (note,) = demand.notes
    assert f"{demand.local_bytes} bytes inside servers" in note


@pytest.mark.parametrize("count", [2**31, 2**31 + 7, 2**32 + 1])
def test_counts_above_2_to_the_31_are_exact(tmp_path: Path, count: int) -> None:
    demand = load_demand(matrix(tmp_path, f"0,{count}\n1,0\n"), unit="tokens", token_bytes=4032)
    assert demand.wire_bytes[0, 1] == count * 4096


@pytest.mark.parametrize("count", [2**53 + 1, 2**60 + 12345])
def test_integers_above_2_to_the_53_are_exact(tmp_path: Path, count: int) -> None:
    content = f"0,{count}\n1,0\n"
    packets = -(-count // 4032)
    assert load_demand(matrix(tmp_path, content)).wire_bytes[0, 1] == count + 64 * packets
    array = np.array([[0, count], [1, 0]])
    assert load_demand(matrix(tmp_path, npy(array))).wire_bytes[0, 1] == count + 64 * packets


# Payload, MTU, wire bytes; 4096 B hold 4032 B of payload.
HEADERS = [
    (0, 4096, 0),
    (1, 4096, 65),
    (4031, 4096, 4095),
    (4032, 4096, 4096),
    (4033, 4096, 4033 + 2 * 64),
    (8064, 4096, 8192),
    (10_000_000, 4096, 10_000_000 + 2481 * 64),
    (2500, 1064, 2500 + 3 * 64),
    (65, 128, 65 + 2 * 64),
]


@pytest.mark.parametrize(("payload", "mtu", "wire"), HEADERS)
def test_headers_are_added(tmp_path: Path, payload: int, mtu: int, wire: int) -> None:
    demand = load_demand(matrix(tmp_path, f"0,{payload}\n0,0\n"), mtu_bytes=mtu)
    assert demand.wire_bytes[0, 1] == wire


def test_headers_of_tokens(tmp_path: Path) -> None:
    # 3 tokens are 21,504 B: 5 whole packets of 4,032 B and one of 1,344 B.
    demand = load_demand(matrix(tmp_path, "0,3\n1,0\n"), unit="tokens", token_bytes=7168)
    assert demand.wire_bytes.tolist() == [[0, 21_504 + 6 * 64], [7168 + 2 * 64, 0]]
    assert demand.notes == ()


def test_part_of_a_byte_is_a_byte(tmp_path: Path) -> None:
    path = matrix(tmp_path, "0,0.1,2.5\n0,0,0\n1,0,0\n")
    assert load_demand(path).wire_bytes.tolist() == [[0, 65, 67], [0, 0, 0], [65, 0, 0]]
    tokens = load_demand(path, unit="tokens", token_bytes=5).wire_bytes
    assert tokens.tolist() == [[0, 65, 77], [0, 0, 0], [69, 0, 0]]


def test_a_last_packet_shorter_than_its_header_is_filled_up(tmp_path: Path) -> None:
    path = matrix(tmp_path, "0,4096,4097,8255\n8256,0,1,63\n64,0,0,0\n0,0,0,0\n")
    demand = load_demand(path, unit="wire-bytes")
    assert demand.wire_bytes.tolist() == [[0, 4096, 4160, 8256], [8256, 0, 64, 64], [64, 0, 0, 0], [0, 0, 0, 0]]
    (note,) = demand.notes
    assert "last packet of 4 flows was filled up" in note
    assert str(path) in note


def test_filling_up_goes_by_the_mtu(tmp_path: Path) -> None:
    path = matrix(tmp_path, "0,1001\n1064,0\n")
    assert load_demand(path, unit="wire-bytes", mtu_bytes=1000).wire_bytes.tolist() == [[0, 1064], [1064, 0]]


def test_m_and_the_bottleneck(tmp_path: Path) -> None:
    demand = load_demand(matrix(tmp_path, "0,1000,3000\n500,0,700\n600,800,0\n"), unit="wire-bytes")
    equal = demand.bottleneck([Fraction(800)] * 3)
    assert demand.max_port_bytes == 4000
    assert (equal.side, equal.host, equal.load_bytes, equal.time_s) == ("sender", 0, 4000, Fraction(40))
    # Host 1 receives 1,800 B at a third of the speed.
    slow = demand.bottleneck([Fraction(800), Fraction(800, 3), Fraction(800)])
    assert (slow.side, slow.host, slow.load_bytes, slow.time_s) == ("receiver", 1, 1800, Fraction(54))


def test_of_ports_that_tie_a_receiver_and_the_lower_index_come_first(tmp_path: Path) -> None:
    demand = load_demand(matrix(tmp_path, "0,0,100\n0,0,100\n100,100,0\n"), unit="wire-bytes")
    assert str(demand.bottleneck([Fraction(1)] * 3)) == "receiver 2"
    swap = load_demand(matrix(tmp_path, "0,100\n100,0\n"), unit="wire-bytes")
    assert str(swap.bottleneck([Fraction(1)] * 2)) == "receiver 0"


@pytest.mark.parametrize("name", ["c4-L0-L7", "c4-L7-L15", "github-L7-L15", "wikipedia-L0-L7"])
def test_real_routing_counts(shared_data: Path, name: str) -> None:
    path = shared_data / "olmoe" / f"{name}.csv"
    counts = [[int(cell) for cell in line.split(",")] for line in path.read_text().split()]
    hosts = range(64)
    wire = [[0 if i == j else counts[i][j] * 7168 + 64 * -(-counts[i][j] * 7168 // 4032) for j in hosts] for i in hosts]
    demand = load_demand(path, unit="tokens", token_bytes=7168)
    assert demand.wire_bytes.tolist() == wire
    assert demand.local_bytes == 7168 * sum(counts[i][i] for i in hosts)
    assert "on the diagonal are local" in " ".join(demand.notes)
    rows, columns = [sum(row) for row in wire], [sum(column) for column in zip(*wire, strict=True)]
    bottleneck = demand.bottleneck([Fraction(1)] * 64)
    assert demand.max_port_bytes == bottleneck.load_bytes == max(rows + columns)
    assert bottleneck.side == ("receiver" if name == "wikipedia-L0-L7" else "sender")
