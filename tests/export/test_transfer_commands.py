"""`turnkeep import gym`, `import nooa` and `export gym` as a user calls them."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from gym_samples import ROWS, SCOPE, ids, message, row, write_rows
from test_nooa_files import ARCHIVES
from typer.testing import CliRunner, Result

from turnkeep.cli.main import app
from turnkeep.wire.json import dumps, loads, same, without_nulls

GOOD = [ROWS["ids"], ROWS["tools"]]
BAD = row(message(**{**ids(), "prompt_token_ids": [1, -1]}))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of its own, with lines as wide as in most terminals."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def turnkeep(*words: str, code: int = 0) -> Result:
    """What the command gives."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done


def answer(*words: str, code: int = 0) -> Any:
    """The JSON that the command prints."""
    return json.loads(turnkeep(*words, "--json", code=code).stdout)


def test_a_file_goes_in_and_comes_out() -> None:
    """Import, list and export work as their help says, and the rows are those that went in."""
    write_rows(Path("f.jsonl"), *GOOD)
    said = turnkeep("import", "gym", "f.jsonl", "--store", "a.db").stdout
    assert said.splitlines()[1].split() == ["f.jsonl", "2", "5", "2"]
    assert "f/2" in turnkeep("ls", "--store", "a.db").stdout
    done = answer("export", "gym", "--all", "--store", "a.db", "--out", "out.jsonl")
    assert [each["rollout"] for each in done["rollouts"]] == ["f/1", "f/2"]
    rows = Path("out.jsonl").read_bytes().splitlines()
    assert all(same(loads(found), value) for found, value in zip(rows, GOOD, strict=True))
    assert sum(each["bytes"] for each in done["rollouts"]) == Path("out.jsonl").stat().st_size
    assert [path.name for path in Path().glob(".*")] == []
    assert stat.S_IMODE(Path("out.jsonl").stat().st_mode) == stat.S_IMODE(Path("f.jsonl").stat().st_mode)


def test_refusals_are_told_by_file_and_line() -> None:
    """A refused row makes exit code 1, is named with its place, and the rest is in; rows alike share a line."""
    write_rows(Path("f.jsonl"), GOOD[0], BAD, b"{}", b"{}", b"{}", GOOD[1])
    write_rows(Path("g.jsonl"), GOOD[0])
    said = turnkeep("import", "gym", "f.jsonl", "g.jsonl", "--store", "a.db", code=1).stdout
    assert (
        "refused f.jsonl line 2: -1 is not a non-negative integer (item 0, field 'prompt_token_ids', index 1)" in said
    )
    assert "refused f.jsonl lines 3 to 5 (3 rows): the row has no response" in said
    assert "2 files" in said
    report = answer("import", "gym", "f.jsonl", "g.jsonl", "--store", "a.db", code=1)["files"]
    counts = [[each[name] for name in ("rows", "imported", "already_there", "refused")] for each in report]
    assert counts == [[6, 0, 2, 4], [1, 0, 1, 0]]
    assert report[0]["refusals"][0]["error"]["field"] == "prompt_token_ids"
    assert [each["line"] for each in report[0]["refusals"]] == [2, 3, 4, 5]


def test_malformed_rows_can_be_kept_as_gaps() -> None:
    """`--on-malformed gap` takes the row in, which shows in the report and in `ls`, and it exports as it was (7.9)."""
    write_rows(Path("f.jsonl"), BAD)
    (report,) = answer("import", "gym", "f.jsonl", "--on-malformed", "gap", "--store", "a.db")["files"]
    assert (report["with_gap"], report["imported"], report["refused"]) == (1, 0, 0)
    assert (
        json.loads(turnkeep("ls", "--store", "a.db", "--json").stdout)["gaps"][0]["code"]
        == "malformed_training_metadata"
    )
    turnkeep("export", "gym", "f/1", "--store", "a.db", "--out", "out.jsonl")
    assert same(loads(Path("out.jsonl").read_bytes()), BAD)


def test_an_imported_rollout_is_replayed_with_what_its_row_had_besides() -> None:
    """For a caller of the scope it was imported under, the input goes on with the row's output, item for item (4.1)."""
    write_rows(Path("f.jsonl"), *GOOD)
    turnkeep("import", "gym", "f.jsonl", "--store", "a.db", "--scope", SCOPE)
    for number, given in enumerate(GOOD, 1):
        told = loads(turnkeep("replay", f"f/{number}", "--store", "a.db", "--scope", SCOPE, "--json").stdout.encode())
        sent = loads(dumps(given["response"]["output"]))
        assert told["input"][0] == given["responses_create_params"]["input"][0]
        assert [dumps(item) for item in told["input"][1:]] == [without_nulls(dumps(item)) for item in sent]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("import", "gym", "none.jsonl", "--store", "b.db"), "there is no file none.jsonl"),
        (("import", "gym", "f.jsonl", "f.jsonl", "--name", "x", "--store", "b.db"), "--name is for one file"),
        (("import", "nooa", "none.json", "--scope", "s", "--store", "b.db"), "there is no file none.json"),
        (("export", "gym", "--store", "a.db", "--out", "new.jsonl"), "say which rollouts, or --all"),
        (("export", "gym", "f/1", "--all", "--store", "a.db", "--out", "new.jsonl"), "say which rollouts, or --all"),
        (("export", "gym", "--all", "--store", "a.db", "--out", "f.jsonl"), "--force writes over it"),
        (("export", "gym", "--all", "--store", "a.db", "--out", "no/new.jsonl"), "does not exist"),
        (("export", "gym", "--all", "--store", "a.db", "--out", ".", "--force"), ". is a folder"),
        (("export", "gym", "--all", "--store", "a.db", "--out", "a.db", "--force"), "a.db is the store itself"),
        (("export", "gym", "--all", "--store", "a.db", "--out", "./a.db-wal"), "is the store itself"),
        (("export", "gym", "--all", "--store", "a.db", "--out", "null", "--force"), "null is no file"),
    ],
)
def test_arguments_that_cannot_work(words: tuple[str, ...], why: str) -> None:
    """They make exit code 2 and one sentence, and neither a store nor a file is made."""
    write_rows(Path("f.jsonl"), *GOOD)
    turnkeep("import", "gym", "f.jsonl", "--store", "a.db")
    before = Path("f.jsonl").read_bytes()
    Path("null").symlink_to("/dev/null")
    assert why in turnkeep(*words, code=2).stderr
    assert (Path("b.db").exists(), Path("new.jsonl").exists(), Path("f.jsonl").read_bytes()) == (False, False, before)


def test_an_export_that_fails_leaves_the_file_as_it_was() -> None:
    """A rollout that is not there ends the export; the old file stands, and nothing is left beside it."""
    write_rows(Path("f.jsonl"), *GOOD)
    turnkeep("import", "gym", "f.jsonl", "--store", "a.db")
    before = sorted(Path().iterdir())
    text = Path("f.jsonl").read_bytes()
    said = turnkeep("export", "gym", "f/1", "f/9", "--store", "a.db", "--out", "f.jsonl", "--force", code=3)
    assert "f/9" in said.stderr
    assert (Path("f.jsonl").read_bytes(), sorted(Path().iterdir())) == (text, before)
    turnkeep("export", "gym", "f/2", "--store", "a.db", "--out", "f.jsonl", "--force")
    assert same(loads(Path("f.jsonl").read_bytes()), GOOD[1])


def test_what_a_row_does_not_say_is_told() -> None:
    """An export with remarks or with a rollout left out makes exit code 1 and lists them; the file is written."""
    Path("t.json").write_text(json.dumps(ARCHIVES))
    said = turnkeep("import", "nooa", "t.json", "--scope", "s", "--store", "a.db").stdout
    assert said == "t: 2 turns, 2 of them native\n"
    said = turnkeep("export", "gym", "--all", "--store", "a.db", "--out", "out.jsonl", code=1).stdout
    assert "out.jsonl: 1 rows, 2 turns" in said
    assert "note t turn 1: it has no recorded request" in said


def test_a_refused_archive_is_told() -> None:
    """NOOA archives that cannot be read make exit code 1 and a sentence, or JSON."""
    Path("t.json").write_text('[{"parts": 3}]')
    said = turnkeep("import", "nooa", "t.json", "--scope", "s", "--store", "a.db", code=1).stdout
    assert said.startswith("refused t.json: ")
    error = answer("import", "nooa", "t.json", "--scope", "s", "--store", "a.db", code=1)["error"]
    assert (error["type"], error["turn"]) == ("ArchiveError", 0)


@pytest.mark.parametrize("words", [("import",), ("import", "gym"), ("import", "nooa"), ("export",), ("export", "gym")])
def test_help_has_an_example(words: tuple[str, ...]) -> None:
    """Each command's help shows how it is called."""
    assert f"Example: turnkeep {' '.join(words)}" in " ".join(turnkeep(*words, "--help").stdout.split())
