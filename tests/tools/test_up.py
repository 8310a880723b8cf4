"""`tandem up` prints a correct summary and handles its options."""

import argparse
import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import write_empty, write_tokenizer

from tandem.contract import entry
from tandem.gateway import server as gateway_server
from tandem.tools import cli as command
from tandem.tools.benchmark import load_generator
from tandem.tools.commands import up
from tandem.tools.errors import TandemError
from tandem.tools.folders import TemporaryFolder, create_log, keep_log, remove_leftovers
from tandem.tools.profiles import deployment
from tandem.tools.triton.server import linked_repository

SERVER = SimpleNamespace(
    http_url="127.0.0.1:1",
    grpc_url="127.0.0.1:2",
    metrics_url="http://127.0.0.1:3/metrics",
    log=SimpleNamespace(path=Path("/tmp/t.log")),
)


@pytest.fixture
def own(tmp_path):
    """The deployment of the user's own checkpoint, without a draft."""
    write_empty(tmp_path, write_tokenizer(tmp_path))
    return deployment.for_checkpoints(tmp_path, None)


def rows(planned):
    """Return the greeting's rows (name -> text) and its two examples, split by shell rules."""
    lines = up.greeting(SERVER, planned, None).splitlines()
    settings = {line[2:11].strip(): line[11:] for line in lines[1:-3]}
    return settings, *map(shlex.split, lines[-2:])


def test_the_greeting_lists_the_chosen_settings(own):
    settings, _, _ = rows(own)
    folder = own.profile.engines.target.checkpoint
    assert settings["target"] == f"{folder} (torch), up to 1008 tokens of context"
    assert settings["draft"] == "none"
    assert settings["drafter"] == "prompt_lookup (a request may use none)"
    assert settings["length"] == "auto draft tokens per round, at most 16"
    assert settings["limits"].startswith("up to 64 sequences run and 64 wait; KV cache of ")
    assert (settings["gRPC"], settings["HTTP"]) == ("127.0.0.1:2", "http://127.0.0.1:1")


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_warm_up_is_short_and_ends_with_requests_that_auto_measures(own, monkeypatch, seconds):
    asked, closed = [], []

    class SlowClient(ExitStack):
        def stream(self, _, inputs):
            asked.append(inputs)
            try:
                yield from range(5)
            finally:
                closed.append(inputs)

    monkeypatch.setattr(load_generator, "Client", lambda _: SlowClient())
    monkeypatch.setattr(load_generator, "WARM_UP_SECONDS", seconds)
    load_generator.warm_up(SERVER, own)
    assert closed == asked
    assert len(asked) == 1 if seconds == 0 else len(asked) > 2
    if seconds:
        chosen = [i for i in asked if not {entry.DRAFTER, entry.NUM_DRAFT_TOKENS} & set(i)]
        new, repeated = (i[entry.TEXT_INPUT] for i in chosen)
        assert asked[-2:] == chosen
        assert repeated == 3 * new  # prompt lookup finds matches


def test_the_greeting_says_that_drafts_are_translated(own, tmp_path):
    write_empty(tmp_path / "draft", write_tokenizer(tmp_path / "draft", size=280))
    target = own.profile.engines.target.checkpoint
    settings, _, _ = rows(deployment.for_checkpoints(target, tmp_path / "draft"))
    assert settings["draft"].endswith(
        "draft (torch); its vocabulary isn't the target's, so drafts are translated through the "
        "text"
    )


def test_the_example_in_the_greeting_has_the_right_port_and_model(own):
    _, generate, curl = rows(own)
    assert generate == ["tandem", "generate", "--url", "127.0.0.1:2", "Once upon a time"]
    assert curl[2] == "http://127.0.0.1:1/v2/models/bls_stream/generate_stream"


def test_the_example_for_a_chat_model_is_a_chat(own):
    folder = own.tokenizer.folder
    options = argparse.Namespace(chat_template=None)
    for expected in ("/v2/models/bls_stream/generate_stream", "/v1/chat/completions"):
        chats = up._chats(own, options)
        gateway, key = "http://127.0.0.1:4", "$TANDEM_API_KEY"
        greeting = up.greeting(SERVER, own, gateway, chats=chats, key=key)
        last = greeting.splitlines()[-1]
        curl = shlex.split(last)
        assert curl[2].endswith(expected)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert curl[2:6] == [
        "http://127.0.0.1:4" + expected,
        "-H",
        "content-type: application/json",
        "-H",
    ]
    assert curl[6] == "authorization: Bearer $TANDEM_API_KEY"
    assert json.loads(curl[-1])["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("variables", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"BROWSER": "b"}, True)]
)
def test_the_page_is_opened_if_there_is_a_browser(monkeypatch, variables, opens):
    opened = []
    monkeypatch.setattr(up.webbrowser, "open", opened.append)
    for name in up.SCREENS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    up.open_page("http://127.0.0.1:8080")
    assert opened == (["http://127.0.0.1:8080"] if opens else [])


@pytest.fixture
def started_gateway(own, monkeypatch):
    """A function that runs `tandem up` without Triton, and returns the gateway's settings."""
    made = []
    server = SimpleNamespace(**vars(SERVER), wait=lambda **_: None)
    monkeypatch.setattr(up, "chosen_deployment", lambda _: own)
    monkeypatch.setattr(up, "serving", lambda *_: nullcontext(server))
    monkeypatch.setattr(up, "application", made.append)
    monkeypatch.setattr(gateway_server, "serving", lambda *_: nullcontext())

    def run(*words):
        assert command.main(["up", "--base-port", "0", *words]) == 0
        return made[-1]

    return run


def test_up_passes_options_to_the_gateway(started_gateway, monkeypatch, tmp_path):
    def settings(*words):
        made = started_gateway(*words)
        return made.api_keys, made.open_objects

    monkeypatch.delenv("TANDEM_API_KEY", raising=False)
    assert settings() == ((), False)
    monkeypatch.setenv("TANDEM_API_KEY", "variable")
    assert settings("--open-objects") == (("variable",), True)
    keys = tmp_path / "keys"
    keys.write_text("\ufeff# team a\none\n\n two\none\n#three\n")
    assert settings("--api-key-file", str(keys)) == (("one", "two"), False)
    monkeypatch.setenv("TANDEM_OPERATOR_KEY", "operator")
    assert started_gateway().operator_keys == ("operator",)
    assert started_gateway("--operator-key-file", str(keys)).operator_keys == ("one", "two")


def test_the_greetings_example_sends_a_key_that_the_gateway_accepts(
    started_gateway, own, monkeypatch, tmp_path, capsys
):
    (own.tokenizer.folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    monkeypatch.setenv("TANDEM_API_KEY", "variable")
    keys = tmp_path / "the keys"
    keys.write_text("# team a\n\none\ntwo\n")

    def example(*words):
        assert started_gateway(*words)
        command = capsys.readouterr().out.splitlines()[-1].replace("curl", "printf '%s\\n'", 1)
        return subprocess.run(
            command, shell=True, capture_output=True, text=True, check=True
        ).stdout

    assert "authorization: Bearer variable\n" in example()
    assert "authorization: Bearer one\n" in example("--api-key-file", str(keys))
    monkeypatch.delenv("TANDEM_API_KEY")
    assert "authorization" not in example()


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ([], ()),
        (["--address", "::1"], ()),
        (["--allow-host", "Chat.example"], ("chat.example",)),
        (["--address", "0.0.0.0"], None),
        (["--address", "0.0.0.0", "--allow-host", "chat.example"], ("chat.example",)),
    ],
)
def test_only_a_gateway_for_this_machine_knows_its_host_names(started_gateway, words, hosts):
    assert started_gateway(*words).allowed_hosts == hosts


def test_ctrl_c_counts_as_an_interrupt_only_during_startup(own, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "chosen_deployment", lambda _: own)
    monkeypatch.setattr(up, "serving", interrupted)
    assert command.main(["up", "--no-gateway"]) == 130
    server = SimpleNamespace(**vars(SERVER), wait=interrupted)
    monkeypatch.setattr(up, "serving", lambda *_: nullcontext(server))
    assert command.main(["up", "--no-gateway"]) == 0


def test_a_second_ctrl_c_does_not_interrupt_the_cleanup(own, monkeypatch):
    remove = shutil.rmtree

    def interrupted(folder, **options):
        signal.raise_signal(signal.SIGINT)
        remove(folder, **options)

    with suppress(KeyboardInterrupt), linked_repository(own) as models:
        monkeypatch.setattr(shutil, "rmtree", interrupted)
        raise KeyboardInterrupt
    assert not models.parent.exists()


KILLED = """
import os, signal
from tandem.tools.errors import TandemError
from tandem.tools.folders import TemporaryFolder, create_log
folder = TemporaryFolder()
(folder.path / "models").mkdir()
log, path = create_log()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_a_killed_server_are_removed_at_the_next_start(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KILLED], env=variables, check=False)
    (tmp_path / "tandem-server-mine.txt").touch()
    assert len(list(tmp_path.iterdir())) == 3
    folder, (descriptor, running), (closed, kept) = TemporaryFolder(), create_log(), create_log()
    os.close(closed)
    keep_log(kept)  # its server has failed, and the error names it
    remove_leftovers()
    others = {folder.path, running, kept, tmp_path / "tandem-server-mine.txt"}
    assert set(tmp_path.iterdir()) == others
    os.close(descriptor)
    folder.remove()


def test_a_start_does_not_wait_for_another_users_named_pipe(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.mkfifo(tmp_path / "tandem-server-pipe")
    remove_leftovers()


def test_servers_start_on_a_file_system_without_locks(monkeypatch, tmp_path):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", flock)
    folder, (descriptor, log) = TemporaryFolder(), create_log()
    remove_leftovers()  # of which it can't know that no server uses them
    assert set(tmp_path.iterdir()) == {folder.path, log}
    os.close(descriptor)
    folder.remove()


def test_an_unreadable_key_file_is_rejected_before_models_are_loaded(own, monkeypatch, capsys):
    monkeypatch.setattr(up, "chosen_deployment", lambda _: own)
    monkeypatch.setattr(up, "serving", lambda *_: pytest.fail("the server was started"))
    assert command.main(["up", "--base-port", "0", "--api-key-file", "/absent"]) == 1
    assert capsys.readouterr().err == "tandem: can't read /absent: No such file or directory\n"


def test_the_log_stays_while_a_process_of_the_server_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptor, log = create_log()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=descriptor) as process:
        os.close(descriptor)
        remove_leftovers()
        assert log.exists()
        process.kill()
    remove_leftovers()
    assert not log.exists()


def test_up_keeps_a_signal_ignored_that_nohup_ignores():
    code = "from tandem.tools import cli; cli.main(['up', '--draft', 'd'])"
    code += "; import signal; print(signal.getsignal(signal.SIGHUP).name)"
    nohup = ["nohup", sys.executable, "-c", code]
    assert subprocess.run(nohup, capture_output=True, check=True).stdout == b"SIG_IGN\n"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (
            "--allow-host",
            ["chat.example:443", "https://chat.example", "chat.example.", "*.example"],
        ),
        ("--allow-origin", ["chat.example", "https://chat.example/", "https://*.example"]),
        ("--otlp-traces-endpoint", ["localhost:4318", "http://localhost:4318", "grpc://a:1/b"]),
    ],
)
def test_values_that_never_match_a_request_are_rejected(capsys, option, values):
    for value in values:
        assert command.main(["up", option, value]) == 2
        shown = capsys.readouterr().err
        assert f"argument {option}: must be " in shown
        assert f"got {value!r}" in shown


def test_missing_packages_for_traces_are_an_error_before_models_are_loaded(
    own, monkeypatch, capsys
):
    monkeypatch.setattr(up, "chosen_deployment", lambda _: own)
    monkeypatch.setattr(up, "serving", lambda *_: pytest.fail("the server was started"))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "tandem.gateway.tracing", raising=False)
    words = ["--base-port", "0", "--otlp-traces-endpoint", "http://localhost:4318/v1/traces"]
    assert command.main(["up", *words]) == 1
    assert "install Tandem with the extra 'otel'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        "--open",
        "--open-objects",
        "--api-key-file=a",
        "--operator-key-file=a",
        "--allow-host=a",
        "--allow-origin=http://a",
    ],
)
def test_options_of_the_gateway_are_rejected_without_it(capsys, monkeypatch, option):
    monkeypatch.setenv("TANDEM_API_KEY", "variable")
    assert command.main(["up", option, "--no-gateway"]) == 2
    line = f"tandem: set {option.partition('=')[0]} or --no-gateway, not both\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("one", "other"), [("http", "grpc"), ("grpc", "gateway")])
def test_two_equal_ports_are_rejected(capsys, one, other):
    assert command.main(["up", f"--{one}-port", "7001", f"--{other}-port", "7001"]) == 2
    line = f"tandem: --{one}-port and --{other}-port must be different; got 7001\n"
    assert capsys.readouterr().err == line


def test_a_broken_chat_template_is_an_error_before_models_load(own):
    folder = own.tokenizer.folder
    (folder / "chat_template.jinja").write_text("{% fox message in messages %}")
    line = r"^can't read the chat template: .*'fox'.*; set --chat-template FILE, or --no-gateway$"
    with pytest.raises(TandemError, match=line):
        up._chats(own, argparse.Namespace(chat_template=None))
    good = folder / "good.jinja"
    good.write_text("{{ messages[0].content }}")
    assert up._chats(own, argparse.Namespace(chat_template=good))
