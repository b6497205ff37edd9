"""docs/format.md to the letter: a reader written from it alone, on the standard library, reads what turnkeep wrote."""

import asyncio
import hashlib
import json
import math
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

import turnkeep as tk
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy

CODES = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int64": "q", "float64": "d"}
PUBLIC = {"text": ["text"], "reasoning": ["text"], "tool_call": ["id", "name", "arguments"]}
TRAINING = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}
SCRIPT: list[Any] = [
    [{"reasoning": "hm \u2028 \x07"}, {"text": ["Os", "lo"], "extra": {"note": None, "marks": [[-1, 2], [3, 4]]}}],
    [{"call": "f", "arguments": '{"a":  1.0}'}],
    [{"text": "end"}],
]


def unpack_message(data: bytes) -> Any:
    """A MessagePack value of the kinds that stored bodies hold: integers, texts, binaries, arrays."""
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        assert at <= len(data)
        return data[at - count : at]

    def number(count: int) -> int:
        return int.from_bytes(take(count), "big")

    def value() -> Any:
        first = number(1)
        if first < 0x80:
            return first
        if 0x90 <= first < 0xA0:
            return [value() for _ in range(first & 15)]
        if 0xA0 <= first < 0xC0:
            return take(first & 31).decode()
        sizes = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xD9: 1, 0xDC: 2}
        size = number(sizes[first])
        if first in (0xCC, 0xCD, 0xCE):
            return size
        if first == 0xDC:
            return [value() for _ in range(size)]
        return take(size).decode() if first == 0xD9 else take(size)

    whole = value()
    assert at == len(data)
    return whole


class Reader:
    """One rollout of a store file, read by the document alone."""

    def __init__(self, path: Path, rollout: str) -> None:
        self.db = sqlite3.connect(path)
        self.rollout = rollout
        (self.key,) = self.db.execute("SELECT key FROM rollouts WHERE id = ?", (rollout,)).fetchone()
        query = f"SELECT document, digest FROM records WHERE rollout = ? AND kind = 4 AND number = {2**63 - 1}"
        self.state, self.state_digest = self.db.execute(query, (self.key,)).fetchone()

    def rows(self, kind: str) -> list[Any]:
        """The documents of a kind, each held against its digest."""
        found = self.db.execute(
            "SELECT number, document, digest FROM records WHERE rollout = ? AND kind = ? ORDER BY number",
            (self.key, ["calls", "turns", "tools", "failures", "states", "origins"].index(kind)),
        )
        documents = []
        for number, document, digest in found:
            assert sha(f"{self.rollout}\0{kind}\0{number}\0".encode() + document).digest() == digest
            documents.append(json.loads(document))
        return documents

    def blob(self, digest: str) -> bytes:
        """The bytes of a digest."""
        (data,) = self.db.execute("SELECT data FROM blobs WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
        assert sha(data).hexdigest() == digest
        assert isinstance(data, bytes)
        return data

    def stored(self, digest: str) -> tuple[list[bytes], list[Any]]:
        """A stored body: its pieces, and its holes with their arrays' bytes in the end."""
        data = self.blob(digest)
        assert data[:6] == b"tkpb\x01\x00"
        pieces, holes = unpack_message(data[6:])
        for hole in holes:
            raw = self.blob(hole[5].hex()) if hole[6] == 1 else hole[-1]
            if hole[6] == 2:
                others = {(part, field): data for part, field, *_, data in self.stored(hole[7].hex())[1]}
                raw = others[hole[8], "prompt_token_ids"] + others[hole[8], "generation_token_ids"] + widen(raw, hole)
            hole.append(widen(raw, hole) if hole[6] == 0 else raw)
            assert sha(hole[-1]).digest() == hole[5]
        return pieces, holes

    def body(self, document: Any) -> bytes:
        """The body of a turn or of a call, byte for byte."""
        pieces, holes = self.stored(document["body"][0])
        text = pieces[0]
        for (_, _, between, dtype, shape, *_, raw), piece in zip(holes, pieces[1:], strict=True):
            array = unpack(raw, {"dtype": dtype, "shape": shape})
            text += json.dumps(array, separators=(between.decode(), ":")).encode() + piece
        return text

    def arrays(self, document: Any, index: int) -> list[tuple[str, str, list[int], bytes]]:
        """The arrays of an item that stood in holes, in its order."""
        return [
            (hole[1], hole[3], hole[4], hole[-1]) for hole in self.stored(document["body"][0])[1] if hole[0] == index
        ]

    def item(self, document: Any, index: int, *, withheld: bool = False) -> Any:
        """A native item, its null members dropped, perhaps without training fields."""
        item = json.loads(self.body(document))["output"][index]
        return drop_nulls({name: value for name, value in item.items() if not (withheld and name in TRAINING)})

    def text(self, digest: str) -> bytes:
        """A text of a request: in a call's row, or a blob."""
        texts = {name: text for call in self.rows("calls") for name, text in call["texts"].items()}
        return texts[digest].encode() if digest in texts else self.blob(digest)

    def entries(self, call: Any) -> list[Any]:
        """The entries of a call's request, those that it shares with an earlier one first."""
        base = call["request"]["base"]
        begun = self.entries(self.rows("calls")[base[0]])[: base[1]] if base else []
        return [*begun, *call["request"]["entries"]]

    def request(self, call: Any) -> bytes:
        """The body that a call sent, rebuilt."""
        turns, texts = self.rows("turns"), []
        for form, ref in self.entries(call):
            if isinstance(ref, str):
                texts.append(self.text(ref))
            else:
                assert form in ("native", "withheld")
                items = (
                    self.item(turns[ref], i, withheld=form == "withheld")
                    for i in range(len(json.loads(self.body(turns[ref]))["output"]))
                )
                texts.append(b",".join(map(spell, items)))
        return b'{"input":[' + b",".join(filter(None, texts)) + b"]" + self.text(call["request"]["tail"]) + b"}"


def sha(data: bytes) -> Any:
    """SHA-256."""
    return hashlib.sha256(data)


def spell(value: Any) -> bytes:
    """JSON text in the one spelling."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def unpack(data: bytes, ref: Any) -> Any:
    """An array's nested lists."""
    values: Any = list(struct.unpack(f"<{math.prod(ref['shape'])}{CODES[ref['dtype']]}", data))
    for width in reversed(ref["shape"][1:]):
        values = [values[at : at + width] for at in range(0, len(values), width)]
    return values


def widen(data: bytes, hole: Any) -> bytes:
    """The data of an array, every fourth byte put back where they were left out."""
    if hole[3] != "uint32" or len(data) % 3 or (hole[6] == 0 and len(data) == 4 * math.prod(hole[4])):
        return data
    return b"".join(data[at : at + 3] + b"\0" for at in range(0, len(data), 3))


def drop_nulls(value: Any) -> Any:
    """A value without the members that are null, at every depth."""
    if isinstance(value, dict):
        return {name: drop_nulls(member) for name, member in value.items() if member is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


def turn_digest(document: Any, reader: Reader) -> str:
    """The digest of a turn, as the document says."""
    body, digest = json.loads(reader.body(document)), sha(b"")
    calls = any(item["type"] == "function_call" for item in body["output"])
    pieces = [spell([document["scope"], "tool_calls" if calls else "stop"])]
    pieces.append(spell({"usage": body.get("usage"), "model_name": body.get("model"), "response_id": body.get("id")}))
    for index, item in enumerate(body["output"]):
        pieces.append(spell(public(item)))
        arrays = {field: (dtype, shape, raw) for field, dtype, shape, raw in reader.arrays(document, index)}
        arrays |= {name: packed(value) for name, value in item.items() if name not in arrays and packed(value)}
        pieces.append(spell({name: None if name in arrays else value for name, value in item.items()}))
        for field in (name for name in item if name in arrays):
            dtype, shape, raw = arrays[field]
            array = sha(f"{dtype}{shape}".encode() + raw).hexdigest()
            pieces.append(json.dumps([field, array]).encode())
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return str(digest.hexdigest())


def public(item: Any) -> list[str]:
    """The kind and public fields of an item."""
    if item["type"] == "function_call":
        return ["tool_call", item["call_id"], item["name"], item["arguments"]]
    blocks = item.get("content") or item.get("summary") or []
    kind, between = ("reasoning", "\n") if item["type"] == "reasoning" else ("text", "")
    return [kind, between.join(block["text"] for block in blocks)]


def packed(value: Any) -> Any:
    """Dtype, shape and bytes of a short array, which is text in the body and an array in the turn; None for others."""
    flat: Any = value
    shape: list[int] = []
    while isinstance(flat, list) and flat:
        shape.append(len(flat) // math.prod(shape) if shape else len(flat))
        if not isinstance(flat[0], list):
            break
        flat = [each for row in flat for each in row]
    kinds = {type(each) for each in flat} if shape else set()
    if kinds not in ({int}, {float}):
        return None
    signed, top = min(flat) < 0, max(flat)
    dtype = "float64" if kinds == {float} else "int8" if signed else "uint8" if top < 256 else "uint16"
    return dtype, shape, struct.pack(f"<{len(flat)}{CODES[dtype]}", *flat)


async def talk(url: str, rollout: tk.Rollout) -> None:
    """Three calls: the first plain, the second after a native turn, the third after an example as well."""
    history: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Ørsta?"}]
    async with tk.PolicyClient(url, rollout) as policy:
        for number in range(3):
            history.append(await policy.call(history, {"tools": []}))
            if number == 1:
                history.append({"role": "assistant", "content": "an example"})
        with pytest.raises(tk.PreparationFailure):
            await policy.call([{"role": "tool", "content": "no id"}])
    rollout.set_origin({"source": "talk", "reward": 1.0})
    tk.once_sync(rollout, "order", {"place": "Oslo"}, lambda: 7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store with one rollout."""
    path = tmp_path_factory.mktemp("format") / "r.db"
    with (
        running_policy(script=make_script(SCRIPT)) as url,
        tk.open_store(path) as store,
        tk.Rollout.open(store, "r-1", scope=tk.Scope("policy_model")) as rollout,
    ):
        asyncio.run(talk(url, rollout))
    return path


@pytest.fixture
def reader(path: Path) -> Any:
    """Give the independent reader of that rollout."""
    reader = Reader(path, "r-1")
    yield reader
    reader.db.close()


def test_the_file_is_marked_as_the_document_says(reader: Reader) -> None:
    """Application id, version, tables and columns (docs/format.md, SQLite schema)."""
    pragmas = [
        reader.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version", "page_size")
    ]
    assert pragmas == [0x746B7031, 2, 16384]
    tables = {name for (name,) in reader.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"rollouts", "records", "blobs", "sqlite_sequence"}
    columns = [row[1] for table in ("rollouts", "records") for row in reader.db.execute(f"PRAGMA table_info({table})")]
    assert columns == ["key", "id", "epoch", "writer", "rollout", "number", "kind", "document", "digest"]


def test_turns_have_the_digests_of_the_document(reader: Reader) -> None:
    """The formula for a turn's digest gives the one that was written, and it is that of the API."""
    documents = reader.rows("turns")
    assert len(documents) == 3
    for document in documents:
        assert (document["format"], document["version"]) == ("turnkeep-turn", 2)
        assert turn_digest(document, reader) == document["digest"]


def test_arrays_are_what_the_response_held(reader: Reader) -> None:
    """A response's body comes back by the document, and its turn shares the blob (contract 7.11)."""
    turns = reader.rows("turns")
    extended = 0
    for call in reader.rows("calls"):
        body = reader.body(call)
        assert sha(body).hexdigest() == call["response"]
        assert turns[call["turn"]]["body"] == call["body"]
        extended += any(hole[6] == 2 for hole in reader.stored(call["body"][0])[1])
    assert extended


def test_requests_can_be_rebuilt_by_the_document(reader: Reader) -> None:
    """Forms, references and tail give the body whose SHA-256 and length stand beside them."""
    calls = reader.rows("calls")
    forms = [[form for form, _ in reader.entries(call)] for call in calls]
    assert forms == [["plain"], ["plain", "native"], ["plain", "withheld", "withheld", "portable"]]
    for call in calls:
        body = reader.request(call)
        assert (len(body), sha(body).hexdigest()) == (call["request"]["length"], call["request"]["sha256"])


def test_the_other_documents_have_the_members_that_are_named(reader: Reader) -> None:
    """State, tool and failure documents are as docs/format.md lists them."""
    head, digest = json.loads(reader.state), reader.state_digest
    assert sha(f"r-1\0states\0{0}\0".encode() + reader.state).digest() == digest
    counts = {name: head[name] for name in ("used", "calls", "turns", "tools", "failures")}
    assert counts == {"used": 3, "calls": 3, "turns": 3, "tools": 1, "failures": 1}
    assert (head["version"], head["origins"]) == (2, 1)
    (origin,) = reader.rows("origins")
    assert origin == {"format": "turnkeep-origin", "version": 1, "origin": {"source": "talk", "reward": 1.0}}
    text = (Path(__file__).parent.parent / "docs/format.md").read_text(encoding="utf-8")
    (tool,), (failure,) = reader.rows("tools"), reader.rows("failures")
    for document in (head, tool, origin, *reader.rows("calls"), *reader.rows("turns")):
        assert [name for name in document if f'"{name}"' not in text] == []
    assert tool == {**tool, "format": "turnkeep-tool", "version": 1, "number": 0, "state": "done", "output": 7}
    assert failure == {**failure, "format": "turnkeep-failure", "version": 1, "type": "PreparationFailure", "entry": 0}
