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


class Reader:
    """One rollout of a store file, read by the document alone."""

    def __init__(self, path: Path, rollout: str) -> None:
        self.db = sqlite3.connect(path)
        self.rollout = rollout
        self.key, self.state = self.db.execute("SELECT key, state FROM rollouts WHERE id = ?", (rollout,)).fetchone()

    def rows(self, kind: str) -> list[Any]:
        """The documents of a kind, each held against its digest."""
        found = self.db.execute(
            f"SELECT number, document, digest FROM {kind} WHERE rollout = ? ORDER BY number", (self.key,)
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

    def item(self, document: Any, index: int, *, withheld: bool = False) -> Any:
        """A native item with its arrays put back, its null members dropped, perhaps without training fields."""
        item = dict(document["turn"]["parts"][index]["native"])
        for ref in document["arrays"]:
            if ref["part"] == index:
                item[ref["field"]] = unpack(self.blob(ref["blob"]), ref)
        return drop_nulls({name: value for name, value in item.items() if not (withheld and name in TRAINING)})

    def request(self, call: Any) -> bytes:
        """The body that a call sent, rebuilt."""
        turns, texts = self.rows("turns"), []
        for form, ref in call["request"]["entries"]:
            if isinstance(ref, str):
                texts.append(self.blob(ref))
            else:
                assert form in ("native", "withheld")
                items = (
                    self.item(turns[ref], i, withheld=form == "withheld")
                    for i in range(len(turns[ref]["turn"]["parts"]))
                )
                texts.append(b",".join(map(spell, items)))
        return b'{"input":[' + b",".join(filter(None, texts)) + b"]" + self.blob(call["request"]["tail"]) + b"}"


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


def drop_nulls(value: Any) -> Any:
    """A value without the members that are null, at every depth."""
    if isinstance(value, dict):
        return {name: drop_nulls(member) for name, member in value.items() if member is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


def turn_digest(document: Any, reader: Reader) -> str:
    """The digest of a turn, as the document says."""
    turn, digest = document["turn"], sha(b"")
    rest = {name: value for name, value in turn.items() if name not in ("parts", "replay_scope", "finish_reason")}
    pieces = [spell([turn["replay_scope"], turn["finish_reason"]]), spell(rest)]
    for index, part in enumerate(turn["parts"]):
        pieces.append(spell([part["kind"], *(part[name] for name in PUBLIC[part["kind"]])]))
        pieces.append(spell(part["native"]))
        for ref in document["arrays"]:
            if ref["part"] == index:
                array = sha(f"{ref['dtype']}{ref['shape']}".encode() + reader.blob(ref["blob"])).hexdigest()
                pieces.append(json.dumps([ref["field"], array]).encode())
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return str(digest.hexdigest())


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
    assert pragmas == [0x746B7031, 1, 16384]
    tables = {name for (name,) in reader.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"rollouts", "calls", "turns", "tools", "failures", "blobs"}
    columns = [row[1] for row in reader.db.execute("PRAGMA table_info(rollouts)")]
    assert columns == ["key", "id", "epoch", "writer", "state", "digest"]


def test_turns_have_the_digests_of_the_document(reader: Reader) -> None:
    """The formula for a turn's digest gives the one that was written, and it is that of the API."""
    documents = reader.rows("turns")
    assert len(documents) == 3
    assert any(ref["dtype"] == "int8" and ref["field"] == "marks" for ref in documents[0]["arrays"])
    for document in documents:
        assert (document["format"], document["version"]) == ("turnkeep-turn", 1)
        assert turn_digest(document, reader) == document["digest"]


def test_arrays_are_what_the_response_held(reader: Reader) -> None:
    """Each native item, its arrays unpacked by the document, is the output item in the response, less its nulls."""
    turns = reader.rows("turns")
    for call in reader.rows("calls"):
        output = json.loads(reader.blob(call["response"]))["output"]
        document = turns[call["turn"]]
        assert [reader.item(document, index) for index in range(len(output))] == drop_nulls(output)


def test_requests_can_be_rebuilt_by_the_document(reader: Reader) -> None:
    """Forms, references and tail give the body whose SHA-256 and length stand beside them."""
    calls = reader.rows("calls")
    forms = [[form for form, _ in call["request"]["entries"]] for call in calls]
    assert forms == [["plain"], ["plain", "native"], ["plain", "withheld", "withheld", "portable"]]
    for call in calls:
        body = reader.request(call)
        assert (len(body), sha(body).hexdigest()) == (call["request"]["length"], call["request"]["sha256"])


def test_the_other_documents_have_the_members_that_are_named(reader: Reader) -> None:
    """State, tool and failure documents are as docs/format.md lists them."""
    head, digest = json.loads(reader.state), reader.db.execute("SELECT digest FROM rollouts").fetchone()[0]
    assert sha(f"r-1\0states\0{0}\0".encode() + reader.state).digest() == digest
    counts = {name: head[name] for name in ("used", "calls", "turns", "tools", "failures")}
    assert counts == {"used": 3, "calls": 3, "turns": 3, "tools": 1, "failures": 1}
    text = (Path(__file__).parent.parent / "docs/format.md").read_text(encoding="utf-8")
    (tool,), (failure,) = reader.rows("tools"), reader.rows("failures")
    for document in (head, tool, *reader.rows("calls"), *reader.rows("turns")):
        assert [name for name in document if f'"{name}"' not in text] == []
    assert tool == {**tool, "format": "turnkeep-tool", "version": 1, "number": 0, "state": "done", "output": 7}
    assert failure == {**failure, "format": "turnkeep-failure", "version": 1, "type": "PreparationFailure", "entry": 0}
