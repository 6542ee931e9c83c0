"""The rate table, and every layout that Python and C share, held against the C compiler."""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import DTypeLike

from controller import native
from controller.demand import HEADER_BYTES
from controller.errors import CannotRunError
from controller.nic import state
from controller.nic.rate_table import RATE_ONE, RATE_SLOTS, TABLE_BYTES, RateTable
from controller.schedule.plan import Discipline
from testbed import engine, net
from testbed.fabric import kernel, programs
from testbed.measure import results
from testbed.stage import tasks
from testbed.topology import Wiring
from tests.conftest import REPOSITORY
from tests.unit.conftest import Compile

HEADERS = {
    "rate_half": "ebpf/include/rate_table.h",
    "rate_table": "ebpf/include/rate_table.h",
    "edt_flow": "ebpf/include/edt.h",
    "port": "ebpf/include/fabric.h",
    "arrival": "ebpf/include/fabric.h",
    "record": "ebpf/include/fabric.h",
    "record_head": "ebpf/include/fabric.h",
    "feedback": "ebpf/include/fabric.h",
    "receive": "ebpf/include/fabric.h",
    "transport_header": "ebpf/include/frame.h",
    "flow": "testbed/engine/transport.h",
    "stage": "testbed/engine/sender.h",
}
# Declared in files that a plain program cannot include: their text is copied into it. Where they are.
COPIED = {
    "struct flow_result": "testbed/engine",
    "enum control_kind": "testbed/engine",
    "MAX_SOCKETS": "testbed/engine",
    "MAX_PORTS": "ebpf/fabric",
    "MAX_ROUTES": "ebpf/fabric",
    "MAX_MEMBERS": "ebpf/fabric",
    "ADAPTIVE_WAYS": "ebpf/fabric",
}


def uncommented(file: Path) -> str:
    text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
    return re.sub(r"//.*", "", text)


def declaration(name: str) -> str:
    """Of a struct, an enum or a macro, as the one file that has it says."""
    pattern = rf"^{name} {{.*?^}};" if " " in name else rf"^#define {name}\s.*?$"
    if name in COPIED:
        files = sorted((REPOSITORY / COPIED[name]).glob("*.[ch]"))
    else:
        files = [REPOSITORY / HEADERS[name.removeprefix("struct ")]]
    found = [match for file in files for match in re.findall(pattern, uncommented(file), re.DOTALL | re.MULTILINE)]
    assert len(set(found)) == 1, f"{name}: {found}"
    return str(found[0])


def members_of(name: str) -> list[str]:
    """As they are declared; that these are all is checked by their sizes."""
    body = declaration(f"struct {name}").split("{", 1)[1]
    declared = re.findall(r"(?:struct )?\w+ ([\w, \[\]]+);", body)
    return [re.sub(r"\[.*", "", member).strip() for line in declared for member in line.split(",")]


STRUCTS = {name: members_of(name) for name in [*HEADERS, "flow_result"]}

CONSTANTS = {
    "RATE_SLOTS": RATE_SLOTS,
    "RATE_ONE": RATE_ONE,
    "RECORD_CAPACITY": engine.RECORD_CAPACITY,
    "ARRIVAL_CAPACITY": programs._ARRIVAL_CAPACITY,
    "RECEIVED_WORDS": engine.RECEIVED_WORDS,
    "ROUTE_WAYS_SHIFT": kernel._ROUTE_WAYS_SHIFT,
    "MAX_PORTS": programs._MAX_PORTS,
    "MAX_ROUTES": kernel._MAX_ROUTES,
    "MAX_MEMBERS": kernel._MAX_MEMBERS,
    "ADAPTIVE_WAYS": kernel._ADAPTIVE_WAYS,
    "MAX_SOCKETS": engine.MAX_SOCKETS,
    "TRUNK_IFINDEX": kernel._TRUNK_IFINDEX,
    "CONTROL_BYTES": HEADER_BYTES,
    "PORT_IFINDEX_BASE": net.PORT_IFINDEX_BASE,
    "ENTROPY_VALUES": engine.ENTROPY_VALUES,
    "OBLIVIOUS_SPRAYING": engine.Balancing.OPS,
    "SINGLE_PATH": engine.Balancing.ECMP,
    "RECYCLED_VALUES": engine.Balancing.REPS,
    "ADAPTIVE_ROUTING": engine.Balancing.AR,
    "ROUND_ROBIN": Discipline.ROUND_ROBIN,
    "PACED": Discipline.PACED,
    "STAGED": Discipline.STAGED,
    "DEFICIT": Discipline.DEFICIT,
    "RECOVERY_SACK": engine.LossRecovery.SACK,
    "RECOVERY_TIMEOUT": engine.LossRecovery.TIMEOUT,
    "RECOVERY_NONE": engine.LossRecovery.NONE,
    "CONTROL_NONE": engine.ControlKind.NONE,
    "CONTROL_WINDOW": engine.ControlKind.WINDOW,
    "CONTROL_RATE": engine.ControlKind.RATE,
}

FieldPlaces = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def c_layout(compile_c: Compile) -> dict[str, str]:
    """What the compiler says: "struct.field" to "offset size", "struct" to its size, and the constants."""
    lines = []
    for name, members in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for member in members:
            place = f"offsetof(struct {name}, {member}), sizeof(((struct {name} *)0)->{member})"
            lines.append(f'printf("{name}.{member} %zu %zu\\n", {place});')
    for name in [*CONSTANTS, "FRAME_TRANSPORT_OFFSET", "FRAME_BYTES", "HOST_ADDRESS_BASE", "FEEDBACK_CAPACITY"]:
        lines.append(f'printf("{name} %llu\\n", (unsigned long long){name});')
    own = {Path(header).name for header in HEADERS.values()}
    headers = ["stddef.h", "stdio.h", "entropy.h", "sender.h", *sorted(own)]
    includes = "\n".join([*(f"#include <{name}>" for name in headers), *map(declaration, COPIED)])
    source = f"{includes}\nint main(void)\n{{\n{chr(10).join(lines)}\nreturn 0;\n}}\n"
    output = subprocess.run([compile_c(source)], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())


def in_c(layout: dict[str, str], name: str) -> tuple[FieldPlaces, int]:
    places: FieldPlaces = {}
    for member in STRUCTS[name]:
        offset, size = layout[f"{name}.{member}"].split()
        places[member] = int(offset), int(size)
    return places, int(layout[name])


def in_struct(form: struct.Struct, members: Sequence[str]) -> tuple[FieldPlaces, int]:
    """Of a format in which each letter, or run of x, is a field, in little-endian order and so without gaps."""
    assert form.format[0] == "<"
    places: FieldPlaces = {}
    offset = 0
    for member, letter in zip(members, re.findall(r"\d*[a-zA-Z]", form.format), strict=True):
        size = struct.calcsize(f"<{letter}")
        places[member] = offset, size
        offset += size
    return places, form.size


def in_dtype(fields: DTypeLike) -> tuple[FieldPlaces, int]:
    dtype = np.dtype(fields)
    assert dtype.fields is not None
    return {name: (field[1], field[0].itemsize) for name, field in dtype.fields.items()}, dtype.itemsize


@pytest.mark.parametrize("name", STRUCTS)
def test_the_fields_found_fill_each_struct(c_layout: dict[str, str], name: str) -> None:
    places, size = in_c(c_layout, name)
    assert sum(length for _, length in places.values()) == size


FORMATS = {
    "edt_flow": struct.Struct(
        "<" + state._LOCKED_FLOW.format.removeprefix("<II").removesuffix("Q")
    ),  # lock, drops; bytes
    "port": programs._PORT,
    "receive": programs._RECEIVE,
    "flow": tasks._FLOW,
}


@pytest.mark.parametrize(("name", "form"), FORMATS.items(), ids=FORMATS)
def test_struct_formats(c_layout: dict[str, str], name: str, form: struct.Struct) -> None:
    assert in_struct(form, STRUCTS[name]) == in_c(c_layout, name)


ARRAYS: dict[str, DTypeLike] = {
    "flow": engine.FLOW_FIELDS,
    "stage": engine.STAGE_FIELDS,
    "flow_result": engine.FLOW_RESULT_FIELDS,
    "record": engine.RECORD_FIELDS,
    "receive": results._RECEIVE_FIELDS,
}


@pytest.mark.parametrize(("name", "fields"), ARRAYS.items(), ids=ARRAYS)
def test_array_types(c_layout: dict[str, str], name: str, fields: DTypeLike) -> None:
    assert in_dtype(fields) == in_c(c_layout, name)


def test_sizes_of_shared_memory(c_layout: dict[str, str]) -> None:
    assert int(c_layout["record_head"]) == programs._HEAD_BYTES
    # Arrivals are told by place, and a byte more would cost another line of the processor's cache.
    assert int(c_layout["arrival"]) == 16


class Memory:
    """The parts of a fabric that its methods write to."""

    def __init__(self, ports: int, hosts: int) -> None:
        self.fabric = programs.FabricPrograms.__new__(programs.FabricPrograms)
        self.ports = self.fabric.ports = memoryview(bytearray(b"\xee" * (ports * programs._PORT.size)))
        self.receives = self.fabric.receives = memoryview(bytearray(b"\xee" * (hosts**2 * programs._RECEIVE.size)))
        self.received = self.fabric._received = memoryview(bytearray(b"\xee" * 8 * 16))
        self.edt_flows = self.fabric._edt_flows = memoryview(bytearray(b"\xee" * 16 * hosts**2))

    def of(self, memory: memoryview, struct_size: int, index: int, place: tuple[int, int]) -> int:
        offset = index * struct_size + place[0]
        return int.from_bytes(memory[offset : offset + place[1]], "little")


COUNTERS = ("control", "marks", "drops", "trims", "lost", "foreign")


def test_counters_of_a_port_are_those_of_their_names(c_layout: dict[str, str]) -> None:
    places, size = in_c(c_layout, "port")
    memory = Memory(3, 1)
    memory.ports[:] = bytes(len(memory.ports))
    for number, name in enumerate(COUNTERS):
        offset, length = places[name]
        memory.ports[size + offset : size + offset + length] = (100 + number).to_bytes(length, "little")
    counted = memory.fabric.port_counters()
    assert counted == [
        dict.fromkeys(COUNTERS, 0),
        {name: 100 + number for number, name in enumerate(COUNTERS)},
        dict.fromkeys(COUNTERS, 0),
    ]


def test_a_failure_is_written_where_the_fabric_reads_it(c_layout: dict[str, str]) -> None:
    places, size = in_c(c_layout, "port")
    memory = Memory(3, 1)
    memory.fabric.fail_links([(1, 2**40, 2**41)])
    assert memory.of(memory.ports, size, 1, places["down_ns"]) == 2**40
    assert memory.of(memory.ports, size, 1, places["up_ns"]) == 2**41
    changed = [at for at, byte in enumerate(memory.ports) if byte != 0xEE]
    first = size + places["down_ns"][0]
    assert changed == list(range(first, first + 16))


def test_a_phase_begins_with_its_totals_and_nothing_else(c_layout: dict[str, str]) -> None:
    places, size = in_c(c_layout, "receive")
    memory = Memory(1, 2)
    memory.fabric.wiring = Wiring(("h1", "h2"), (), (), {})
    # 192 packets have words 0 to 2, 129 packets words 3 to 5.
    memory.fabric.begin_phase([(0, 1, 192, 0), (1, 0, 129, 3)])
    for index, expected in ((0, {}), (1, {"total": 192}), (2, {"total": 129, "word": 3}), (3, {})):
        found = {name: memory.of(memory.receives, size, index, place) for name, place in places.items()}
        assert {name: value for name, value in found.items() if value} == expected
    assert not any(memory.edt_flows)
    assert not any(memory.received[: 8 * 6])
    assert memory.received[8 * 7 :].tobytes() == b"\xee" * 8 * 9


def test_the_flow_table_is_read_as_it_is_written() -> None:
    flow = np.zeros(1, dtype=engine.FLOW_FIELDS)
    for number, name in enumerate(flow.dtype.names or ()):
        flow[name] = number + 1
    assert tasks._FLOW.unpack(flow.tobytes()) == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    names = (
        "source",
        "destination",
        "ready_ns",
        "packets",
        "last_bytes",
        "steps",
        "word",
        "before_steps",
        "quantum_bytes",
    )
    assert flow.dtype.names == names


def test_capacities_are_powers_of_two(c_layout: dict[str, str]) -> None:
    """The fabric takes them as masks; and as many answers fit between two wakes as hosts can get (job.py)."""
    for name in ("RECORD_CAPACITY", "FEEDBACK_CAPACITY", "RECEIVED_WORDS", "ARRIVAL_CAPACITY", "MAX_PORTS"):
        assert int(c_layout[name]).bit_count() == 1, name
    assert 8 * int(c_layout["FEEDBACK_CAPACITY"]) >= int(c_layout["RECORD_CAPACITY"])


def test_the_fabrics_constants_are_all_set() -> None:
    """By the job or by the loader: one that nobody sets is 0 for ever."""
    source = uncommented(REPOSITORY / "ebpf/fabric/state.h")
    declared = re.findall(r"^const volatile __u32 ([\w, ]+);", source, re.MULTILINE)
    common = {name: int(value) for name, value in re.findall(r"^COMMON\((\w+), (\d+)\);", source, re.MULTILINE)}
    names = {name.strip() for line in declared for name in line.split(",")} | common.keys()
    loader = (REPOSITORY / "testbed/fabric/programs.py").read_text()
    by_loader = set(re.findall(r'"(\w+)":', loader.split("own = {")[1].split("programs.load()")[0]))
    job = (REPOSITORY / "testbed/job.py").read_text().split("\ndef _constants")[1].split("\ndef ")[0]
    by_job = set(re.findall(r'^ +"(\w+)":', job, re.MULTILINE))
    assert names == by_loader | by_job
    assert common == programs.PLAIN  # what the compiler knew of plain.bpf.o is what the loader asks before it takes it


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(c_layout: dict[str, str], name: str) -> None:
    assert int(c_layout[name]) == CONSTANTS[name]


def test_addresses_of_hosts(c_layout: dict[str, str]) -> None:
    for host in (0, 255, 999):
        number = int.from_bytes(bytes(int(part) for part in net.host_address(host).split(".")), "big")
        assert number == int(c_layout["HOST_ADDRESS_BASE"]) + host


def test_the_transport_header_lies_in_the_frame_and_is_aligned(c_layout: dict[str, str]) -> None:
    offset, size = int(c_layout["FRAME_TRANSPORT_OFFSET"]), int(c_layout["transport_header"])
    assert 0 <= int(c_layout["FRAME_BYTES"]) - (offset + size) <= 8
    # The kernel sets a frame off by two bytes.
    assert (offset + 2) % 8 == 0


@pytest.mark.usefixtures("part")
def test_layout_of_the_table(c_layout: dict[str, str]) -> None:
    assert int(c_layout["rate_table"]) == TABLE_BYTES
    table, _ = in_c(c_layout, "rate_table")
    half, half_bytes = in_c(c_layout, "rate_half")
    assert table["active"] == (0, 4)
    assert half["steps"] == (8, 4 * RATE_SLOTS)
    memory = bytearray(TABLE_BYTES)
    RateTable(memoryview(memory)).write(words([0x11223344]))
    # The second half, as the first was active before.
    start = table["half"][0] + half_bytes
    assert struct.unpack_from("<I", memory, 0) == (1,)
    assert struct.unpack_from("<Q", memory, start + half["generation"][0]) == (1,)
    assert struct.unpack_from("<II", memory, start + half["steps"][0]) == (0x11223344, 0)


READER = """
#include <stdio.h>
#include "rate_table.h"
int main(void)
{
	static struct rate_table table;

	if (fread(&table, sizeof table, 1, stdin) != 1)
		return 1;
	printf("%llu\\n", (unsigned long long)table.half[table.active & 1].generation);
	for (int slot = 0; slot < RATE_SLOTS; slot++)
		printf("%u\\n", rate_table_steps(&table, slot));
	return 0;
}
"""


@pytest.mark.usefixtures("part")
def test_c_reads_what_python_writes(compile_c: Compile) -> None:
    program = compile_c(READER)
    memory = bytearray(TABLE_BYTES)
    table = RateTable(memoryview(memory))
    rng = np.random.default_rng(7)
    for generation in (1, 2, 3):
        steps = rng.integers(0, 2**32, RATE_SLOTS, dtype=np.uint32)
        table.write(steps.astype("<u4").tobytes())
        output = subprocess.run([program], input=bytes(memory), capture_output=True, check=True).stdout
        assert [int(line) for line in output.split()] == [generation, *steps.tolist()]


def words(steps: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(steps)}I", *steps)


def fresh() -> tuple[bytearray, RateTable]:
    memory = bytearray(TABLE_BYTES)
    return memory, RateTable(memoryview(memory))


@pytest.mark.usefixtures("part")
def test_a_fresh_table_paces_nothing() -> None:
    _, table = fresh()
    assert table.generation == 0
    assert table.read() == (0, bytes(4 * RATE_SLOTS))


@pytest.mark.usefixtures("part")
def test_what_was_written_is_read() -> None:
    _, table = fresh()
    steps = words([1, 2**32 - 1, 0, 7])
    table.write(steps)
    generation, body = table.read()
    assert generation == table.generation == 1
    assert body == steps + bytes(4 * (RATE_SLOTS - 4))


@pytest.mark.usefixtures("part")
def test_each_write_counts_and_takes_the_other_half() -> None:
    _, table = fresh()
    actives = []
    for generation in range(1, 6):
        table.write(words([generation]))
        assert table.generation == generation
        assert struct.unpack_from("<I", table.read()[1]) == (generation,)
        actives.append(table.active)
    assert actives == [1, 0, 1, 0, 1]


@pytest.mark.usefixtures("part")
def test_a_write_leaves_the_half_in_force_alone() -> None:
    memory, table = fresh()
    table.write(words([5] * RATE_SLOTS))
    half = (TABLE_BYTES - 8) // 2
    before = bytes(memory[8 + half :])
    table.write(words([6] * RATE_SLOTS))
    assert bytes(memory[8 + half :]) == before


@pytest.mark.usefixtures("part")
def test_slots_after_the_last_rate_are_cleared() -> None:
    _, table = fresh()
    for _ in range(2):
        table.write(words([9] * RATE_SLOTS))
    table.write(words([1, 2]))
    assert table.read()[1] == words([1, 2]) + bytes(4 * (RATE_SLOTS - 2))


@pytest.mark.usefixtures("part")
def test_as_many_rates_as_slots_fit() -> None:
    _, table = fresh()
    steps = words(range(1, RATE_SLOTS + 1))
    table.write(steps)
    assert table.read()[1] == steps


@pytest.mark.usefixtures("part")
def test_too_many_rates_are_refused_and_nothing_changes() -> None:
    memory, table = fresh()
    table.write(words([3]))
    before = bytes(memory)
    with pytest.raises(ValueError, match="1025 rates do not fit into 1024 slots"):
        table.write(words([1] * (RATE_SLOTS + 1)))
    assert bytes(memory) == before


@pytest.mark.usefixtures("part")
def test_rates_may_come_as_an_array_of_words() -> None:
    _, table = fresh()
    table.write(memoryview(array("I", [4, 5])))
    assert table.read()[1][:8] == words([4, 5])


@pytest.mark.usefixtures("part")
def test_memory_behind_the_table_is_not_touched() -> None:
    memory = bytearray(b"\xee" * (TABLE_BYTES + 64))
    memory[:TABLE_BYTES] = bytes(TABLE_BYTES)
    table = RateTable(memoryview(memory))
    for _ in range(2):
        table.write(words([2**32 - 1] * RATE_SLOTS))
    assert memory[TABLE_BYTES:] == b"\xee" * 64


@pytest.mark.usefixtures("part")
def test_a_half_that_is_being_written_is_not_read() -> None:
    memory, table = fresh()
    table.write(words([3]))
    struct.pack_into("<Q", memory, 8 + (TABLE_BYTES - 8) // 2, 0)
    with pytest.raises(CannotRunError, match="rewritten during every attempt"):
        table.read()


class Words:
    """The words of a table, with something that happens around its accesses."""

    def __init__(self, table: RateTable) -> None:
        self.plain = table._words

    def __getitem__(self, index: int) -> int:
        return self.plain[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.plain[index] = value


class Overtaking(Words):
    """Of a generation: its first reading is followed by two writes, so that the half just begun is rewritten."""

    def __init__(self, table: RateTable) -> None:
        super().__init__(table)
        self.table = table

    def __getitem__(self, index: int) -> int:
        value = super().__getitem__(index)
        if index:
            self.table._words = self.plain
            for step in (11, 12):
                self.table.write(words([step]))
        return value


@pytest.mark.usefixtures("part")
def test_a_reader_that_was_overtaken_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "part", None)
    _, table = fresh()
    table.write(words([10]))
    table._words = cast(Any, Overtaking(table))
    generation, body = table.read()
    assert (generation, struct.unpack_from("<I", body)[0]) == (3, 12)


class Dying(Words):
    """The writer is gone before its n-th store."""

    def __init__(self, table: RateTable, after: int) -> None:
        super().__init__(table)
        self.left = after

    def __setitem__(self, index: int, value: int) -> None:
        self.left -= 1
        if not self.left:
            raise InterruptedError
        super().__setitem__(index, value)


@pytest.mark.parametrize("after", range(1, 4))
@pytest.mark.usefixtures("part")
def test_the_half_in_force_is_whole_at_every_step_of_a_write(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A writer that dies on the way leaves the old rates in force."""
    monkeypatch.setattr(native, "part", None)
    memory, table = fresh()
    table.write(words([10]))
    table._words = cast(Any, Dying(table, after))
    with pytest.raises(InterruptedError):
        table.write(words([20]))
    monkeypatch.undo()
    reader = RateTable(memoryview(memory))
    generation, body = reader.read()
    assert (generation, struct.unpack_from("<I", body)[0]) == (1, 10)
    # The next writer is not put off by what lies there.
    reader.write(words([30]))
    assert struct.unpack_from("<I", reader.read()[1]) == (30,)


OVERTAKEN = """
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <linux/types.h>
static void copy(void *to, const void *from, size_t length);
#define memcpy copy
#include "rate_table_io.h"
#undef memcpy

static struct rate_table table;
static __u32 rates[RATE_SLOTS];
static jmp_buf killed;
static int whole_writes, begun_writes, writing;

/* What happens while a reader copies: so many writes, and the beginning of another. */
static void copy(void *to, const void *from, size_t length)
{
	__u32 rest = begun_writes;

	if (writing && begun_writes && whole_writes < 0) {
		memcpy(to, from, length / 2);
		longjmp(killed, 1);
	}
	memcpy(to, from, length);
	if (writing)
		return;
	writing = 1;
	for (; whole_writes > 0; whole_writes--) {
		begun_writes = 0;
		rate_table_write(&table, rates, RATE_SLOTS);
	}
	whole_writes = -1;
	begun_writes = (int)rest;
	if (begun_writes && !setjmp(killed))
		rate_table_write(&table, rates, RATE_SLOTS);
	writing = 0;
}

int main(void)
{
	static __u32 found[RATE_SLOTS];
	__u64 generation;

	for (int whole = 0; whole <= 3; whole++) {
		for (int begun = 0; begun <= 1; begun++) {
			memset(&table, 0, sizeof table);
			writing = 1, whole_writes = begun_writes = 0;
			rate_table_write(&table, rates, RATE_SLOTS);
			writing = 0, whole_writes = whole, begun_writes = begun;
			printf("%d %d %d\\n", whole, begun, rate_table_read(&table, found, &generation));
		}
	}
	return 0;
}
"""


def test_a_reader_in_c_knows_that_it_was_overtaken(compile_c: Compile) -> None:
    """By a second write that has begun: the first one went to the other half."""
    output = subprocess.run([compile_c(OVERTAKEN)], capture_output=True, check=True, text=True).stdout
    found = {tuple(map(int, line.split()[:2])): int(line.split()[2]) for line in output.splitlines()}
    assert found == {(whole, begun): int(whole + begun < 2) for whole in range(4) for begun in range(2)}


READER_SOURCE = (REPOSITORY / "benchmarks/controller_speed/rate_table_reader.c").read_text()
PATTERNS = 64


def patterns() -> list[bytes]:
    """Rates of write number g, as the reader expects them of g mod 64."""
    slots = np.arange(RATE_SLOTS, dtype=np.uint64) * np.uint64(0x85EBCA77)
    return [((np.uint64(g) * np.uint64(0x9E3779B1) + slots) % 2**32).astype("<u4").tobytes() for g in range(PATTERNS)]


class SharedTable:
    """A table in memory that a process may share."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("rates")
        os.ftruncate(self.fd, -(-TABLE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.memory = memoryview(mmap.mmap(self.fd, TABLE_BYTES))
        self.table = RateTable(self.memory)

    def start(self, program: Path, reads: int) -> subprocess.Popen[str]:
        """A reader that has seen the first write."""
        command = [str(program), str(self.fd), str(reads)]
        reader = subprocess.Popen(command, pass_fds=[self.fd], stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        return reader


@pytest.fixture
def shared() -> Iterator[SharedTable]:
    made = SharedTable()
    yield made
    os.close(made.fd)


@pytest.mark.usefixtures("part")
def test_no_read_of_a_whole_table_is_torn(compile_c: Compile, shared: SharedTable) -> None:
    """A reader in C against a writer, both without pause; benchmarks/controller_speed does it ten million times."""
    rates = patterns()
    shared.table.write(rates[1])
    reader = shared.start(compile_c(READER_SOURCE), 500_000)
    generation = 1
    while reader.poll() is None:
        for _ in range(100):
            generation += 1
            shared.table.write(rates[generation % PATTERNS])
    reads, torn, back, _, seen = (int(word) for word in reader.communicate()[0].split())
    assert (reads, torn, back, reader.returncode) == (500_000, 0, 0, 0)
    assert seen > 10, "reader and writer did not meet"
    assert shared.table.read() == (generation, rates[generation % PATTERNS])


def test_the_reader_tells_a_torn_table(compile_c: Compile, shared: SharedTable) -> None:
    """One that is half of each of two writes, under a generation that says it is whole."""
    rates = patterns()
    shared.table.write(rates[1])
    start = TABLE_BYTES - 4 * RATE_SLOTS // 2
    shared.memory[start:] = rates[2][2 * RATE_SLOTS :]
    reader = shared.start(compile_c(READER_SOURCE), 100)
    assert reader.communicate()[0].split()[:3] == ["1", "1", "0"]
    assert reader.returncode == 1


def test_the_reader_tells_a_generation_that_goes_back(compile_c: Compile, shared: SharedTable) -> None:
    rates = patterns()
    shared.table.write(rates[1])
    shared.table.write(rates[2])
    reader = shared.start(compile_c(READER_SOURCE), 10**9)  # that it ends is the test
    shared.memory[0:4] = (1).to_bytes(4, "little")
    _, torn, back, _, _ = (int(word) for word in reader.communicate()[0].split())
    assert (torn, back, reader.returncode) == (0, 1, 1)
