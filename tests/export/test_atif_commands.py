"""`turnkeep export atif` and `import atif` as a user calls them."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from atif_samples import ASKED, GOOD, answer, call, kept, load, message
from typer.testing import CliRunner, Result

from turnkeep import RolloutView, open_store
from turnkeep.cli.main import app
from turnkeep.wire.json import loads


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder with a store of a good rollout and a bad one, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "a.db") as store:
        kept(GOOD, "good", store)
        bad = (ASKED, answer(message("a\ud800"), call(arguments="{"), status="failed"))
        kept([bad], "bad", store)


def turnkeep(*words: str, code: int = 0) -> Result:
    """What the command gives."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done


def asked(*words: str, code: int = 0) -> Any:
    """The JSON that the command prints."""
    return loads(turnkeep(*words, "--json", code=code).stdout)


def test_a_rollout_goes_out_and_comes_back() -> None:
    """Export, import and verify work as their help says, and the turns are those that went out."""
    said = turnkeep("export", "atif", "good", "--store", "a.db", "--out", "out").stdout
    assert "1 documents" not in said
    assert "out: 1 document and manifest.jsonl" in said
    assert "good.json: 2 turns" in turnkeep("import", "atif", "out", "--store", "b.db").stdout
    assert "already there" in turnkeep("import", "atif", "out/good.json", "--store", "b.db").stdout
    assert "whole, no evidence" in turnkeep("verify", "--store", "b.db").stdout
    (verified,) = asked("verify", "--store", "b.db")["rollouts"]
    assert (verified["turns"], verified["calls"], verified["turns_without_evidence"]) == (2, 0, 2)
    assert "exact" in turnkeep("verify", "good", "--store", "a.db").stdout
    with open_store("a.db") as one, open_store("b.db") as other:
        views = [RolloutView(store, "good") for store in (one, other)]
        assert [turn.digest for turn in views[0].turns] == [turn.digest for turn in views[1].turns]


def test_strict_refuses_everything_for_one_and_says_why() -> None:
    """With one bad rollout nothing is written, every reason is named with its turn, and the exit code is 1."""
    said = turnkeep("export", "atif", "--all", "--store", "a.db", "--out", "out", code=1).stdout
    for words in ("refused  bad", "failed-response (turn 0, field finish_reason)", "lone-surrogate (turn 0"):
        assert words in said
    assert "nothing written: 3 reasons, 1 of 2 rollouts" in said
    assert sorted(path.name for path in Path().iterdir() if not path.name.startswith("a.db")) == []
    (refused,) = asked("export", "atif", "--all", "--store", "a.db", "--out", "out", code=1)["refused"]
    assert refused["rollout"] == "bad"
    assert [reason["rule"] for reason in refused["reasons"]] == [
        "failed-response",
        "arguments-not-json",
        "lone-surrogate",
    ]


def test_lenient_writes_the_reasons_into_the_file() -> None:
    """With --lenient all are written, the reasons in the document and in the JSON answer, and the exit code is 0."""
    done = asked("export", "atif", "--all", "--lenient", "--store", "a.db", "--out", "out")
    assert [(each["rollout"], each["file"]) for each in done["documents"]] == [
        ("good", "good.json"),
        ("bad", "bad.json"),
    ]
    assert [len(each["refused_by_strict"]) for each in done["documents"]] == [0, 3]
    assert len(load(Path("out/bad.json"))["extra"]["turnkeep"]["refused"]) == 3


def test_a_changed_file_is_named() -> None:
    """Import says which turns were changed in the file."""
    turnkeep("export", "atif", "good", "--store", "a.db", "--out", "out")
    document = load(Path("out/good.json"))
    document["steps"][3]["message"] = "Mild."
    Path("out/good.json").write_text(json.dumps(document))
    assert "changed turn 1" in turnkeep("import", "atif", "out/good.json", "--store", "b.db").stdout
    assert asked("import", "atif", "out/good.json", "--store", "c.db")["files"][0]["changed"] == [1]


def test_a_refused_file_leaves_the_others_in() -> None:
    """A file that cannot be read is named with the reason, exit code 1; the others are imported."""
    turnkeep("export", "atif", "good", "--store", "a.db", "--out", "out")
    Path("out/broken.json").write_text('{"steps": 1')
    said = turnkeep("import", "atif", "out", "--store", "b.db", code=1).stdout
    assert "refused broken.json: the file is no JSON" in said
    assert "good.json: 2 turns" in said
    (broken, good) = asked("import", "atif", "out", "--store", "c.db", code=1)["files"]
    assert broken["error"]["type"] == "ArchiveError"
    assert good["turns"] == 2


def test_a_folder_in_a_folder_is_no_document() -> None:
    """A folder is read for its documents alone, and a document that cannot be opened leaves the others in."""
    turnkeep("export", "atif", "good", "--store", "a.db", "--out", "out")
    Path("out/a.json").mkdir()
    assert "good.json: 2 turns" in turnkeep("import", "atif", "out", "--store", "b.db").stdout
    Path("out/b.json").symlink_to("b.json")
    (broken, good) = asked("import", "atif", "out/b.json", "out/good.json", "--store", "c.db", code=1)["files"]
    assert "Too many levels of symbolic links" in broken["error"]["message"]
    assert good["turns"] == 2


@pytest.mark.parametrize("kind", [1, 4])
@pytest.mark.parametrize("words", [(), ("--lenient",)])
def test_a_damaged_rollout_is_refused_with_the_reason(kind: int, words: tuple[str, ...]) -> None:
    """A rollout that cannot be opened is a refusal like others, in lenient export too."""
    with sqlite3.connect("a.db") as connection:
        where = "kind = ? AND rollout = (SELECT key FROM rollouts WHERE id = 'bad')"
        connection.execute(f"UPDATE records SET document = '{{}}' WHERE {where}", [kind])
    connection.close()
    said = turnkeep("export", "atif", "--all", *words, "--store", "a.db", "--out", "out", code=1).stdout
    assert "refused  bad" in said
    assert "unreadable" in said
    assert "nothing written: 1 reason, 1 of 2 rollouts" in said
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "atif", "--store", "a.db", "--out", "out"), "say which rollouts"),
        (("export", "atif", "good", "--all", "--store", "a.db", "--out", "out"), "say which rollouts"),
        (("export", "atif", "good", "--store", "a.db", "--out", "."), "is there already"),
        (("export", "atif", "good", "--store", "a.db", "--out", "no/out"), "does not exist"),
        (("import", "atif", "none.json", "--store", "b.db"), "there is no document"),
        (("import", "atif", "a.db", "a.db", "--rollout", "r", "--store", "b.db"), "--rollout is for one file"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(words: tuple[str, ...], message: str) -> None:
    """Options that cannot work give one paragraph and exit code 2."""
    done = turnkeep(*words, code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("form", "package"), [("atif", "atif"), ("parquet", "pyarrow")])
def test_a_missing_extra_is_named(form: str, package: str) -> None:
    """Without the package of a format the command says in one line what to install, with exit code 2."""
    code = f"import sys; sys.modules[{package!r}] = None; from turnkeep.cli.main import main; main()"
    command = [sys.executable, "-c", code, "export", form, "good", "--store", "a.db", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f"pip install 'turnkeep[{form}]'\n")
    assert done.stderr.count("\n") == 1
    assert not Path("out").exists()


def test_a_rollout_that_is_not_there_is_named() -> None:
    """An unknown rollout is an error with its id."""
    assert "nobody" in turnkeep("export", "atif", "nobody", "--store", "a.db", "--out", "out", code=3).stderr


@pytest.mark.parametrize("command", [("export", "atif"), ("import", "atif"), ("export", "parquet")])
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    """Each command's help shows how it is called."""
    assert f"Example: turnkeep {' '.join(command)}" in turnkeep(*command, "--help").stdout
