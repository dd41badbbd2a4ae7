"""The configuration of `jobs.serve`, and what it becomes."""

import re
import shutil
from pathlib import Path

import pytest

from endpoint.edge.headers import Keys
from jobs import serve
from jobs.config.serve import ServeConfig, load_serve_config
from jobs.work import serving

PROG = "python -m jobs.serve"


def load(*flags: str, is_open: bool = True) -> ServeConfig:
    return load_serve_config(["--models.target", "target", *(["--serve.open"] if is_open else []), *flags], PROG)


def test_the_configuration_reaches_every_part():
    given = "max_waiting=7 min_replicas=2 max_replicas=5 drain_timeout_s=9 request_timeout_s=11 aliases=a"
    batches = "batches_path=/shared/batches batches_max_rows=12 batches_reserved_slots=2"
    config = load(*(f"--serve.{each}" for each in f"{given} {batches}".split()), "--engine.num_slots=3")
    replica, deployment, service = config.replica_settings(), config.serve.deployment, config.serve.service
    assert (replica.max_waiting, replica.probe_timeout_s) == (7, 27.0)
    assert (deployment.min_replicas, deployment.max_replicas, deployment.drain_timeout_s) == (2, 5, 9.0)
    assert (service.aliases, service.request_timeout_s) == (("a",), 11.0)
    assert (config.serve.batches.path, config.serve.batches.max_rows) == ("/shared/batches", 12)
    assert replica.num_reserved == 2
    assert config.generator.engine.num_slots == 3


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--serve.bogus=1"], "bogus"),
        (["--sampling.temperature=1"], "sampling"),
        (["--serve.min_replicas=3"], "serve.min_replicas and max_replicas must satisfy 1 <= min <= max"),
        (["--serve.max_waiting=-1"], "serve.max_waiting must not be negative"),
        (["--serve.max_surge_percent=0"], "serve.max_surge_percent must be above 0"),
        (["--serve.port=0"], "serve.port"),
        (["--serve.model="], "serve.model: expected a name of 1 to 512 characters, got ''"),
        (["--serve.aliases=" + "a" * 513], "serve.aliases: expected a name of 1 to 512 characters"),
        (["--serve.max_choices=0"], "serve.max_choices must be at least 1"),
        (["--serve.request_timeout_s=0"], "serve.request_timeout_s must be above 0"),
        (["--serve.health_timeout_s=0"], "must be above 0 seconds"),
        (['--chat.template_columns={"mood": "state"}'], "requests have no columns"),
        (["--stages.count=2", "--serve.hang_timeout_s=100"], "serve.hang_timeout_s is 100"),
        (["--placement=split"], "no draft model is named"),
        (["--serve.max_body_bytes=0"], "serve.max_body_bytes must be at least 1"),
        (["--serve.body_timeout_s=0"], "serve.body_timeout_s"),
        (["--serve.key_variables=KEYS"], "serve.open lets everyone in, and there are serve.key_files"),
        (["--stages.tensor_parallel=2", "--serve.hang_timeout_s=100"], "serve.hang_timeout_s is 100"),
        (["--serve.page_examples=hello"], "serve.page_examples are shown on the page; switch it on with serve.page"),
        (["--serve.page", '--serve.page_examples=["a", " "]'], r"serve.page_examples\[1\] must be a message"),
        (["--serve.batches_max_rows=0"], "serve.batches_max_rows must be at least 1"),
        (["--serve.batches_keep_s=0"], "serve.batches_keep_s must be above 0"),
        (["--serve.batches_reserved_slots=-1"], "serve.batches_reserved_slots must not be negative"),
        (["--engine.num_slots=0"], "engine.num_slots must be at least 1"),
    ],
)
def test_bad_values_are_refused_before_anything_starts(flags, problem):
    with pytest.raises(ValueError, match=problem):
        load(*flags)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "name API keys by serve.key_files or serve.key_variables, or say serve.open"),
        (["--serve.key_variables=NOT_SET"], "environment variable NOT_SET"),
        (["--serve.key_files=nowhere/keys"], "the API keys in nowhere/keys cannot be read"),
    ],
)
def test_an_endpoint_without_keys_must_be_open_explicitly(flags, problem):
    with pytest.raises(ValueError, match=problem):
        load(*flags, is_open=False)


def test_keys_come_from_files_and_variables_and_are_not_shown(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("# of a person\nsk-first-key-of-all\n")
    monkeypatch.setenv("KEYS", "sk-second-key-of-all,sk-third-key-of-all")
    files, variables = f"--serve.key_files={tmp_path / 'keys'}", "--serve.key_variables=KEYS"
    config = load(files, variables, "--serve.max_body_bytes=1MiB", "--serve.page", is_open=False)
    edge = config.edge_settings()
    assert edge.keys is not None
    has = [edge.keys.has(f"sk-{name}-key-of-all".encode()) for name in ("first", "second", "third", "fourth")]
    assert has == [True, True, True, False]
    assert "of-all" not in repr(config) + repr(edge)
    assert (edge.limits.max_body_bytes, edge.has_page, edge.has_docs) == (2**20, True, False)


def test_a_variable_with_keys_may_begin_with_dray_and_is_read_once(monkeypatch):
    monkeypatch.setenv("DRAY_API_KEYS", "sk-first-key-of-all")
    config = load("--serve.key_variables=DRAY_API_KEYS", is_open=False)
    monkeypatch.delenv("DRAY_API_KEYS")  # as the command does before it starts other processes
    keys = config.edge_settings().keys
    assert keys is not None
    assert keys.has(b"sk-first-key-of-all")


@pytest.mark.parametrize("flag", ["--serve.open", "--serve.model=DRAY_API_KEYS"])
def test_a_variable_that_is_only_mentioned_and_names_no_field_is_refused(monkeypatch, flag):
    monkeypatch.setenv("DRAY_API_KEYS", "sk-first-key-of-all")
    with pytest.raises(ValueError, match="environment variable DRAY_API_KEYS names no field") as refused:
        load(flag)
    assert "sk-first" not in str(refused.value)


def test_the_fingerprint_of_keys_changes_with_a_key_and_not_with_their_order():
    first, second = "sk-first-key-of-all", "sk-second-key-of-all"
    assert Keys([first, second]).fingerprint == Keys([second, first]).fingerprint != Keys([first]).fingerprint


def test_the_documented_configurations_are_valid(tmp_path):
    found = []
    for example in re.findall(r"```yaml\n(.*?)```", Path("docs/serving.md").read_text(), flags=re.DOTALL):
        (tmp_path / "keys").write_text("sk-first-key-of-all\n")
        (tmp_path / "serve.yaml").write_text(example.replace("/etc/dray/keys", str(tmp_path / "keys")))
        found.append(load_serve_config([f"--config={tmp_path / 'serve.yaml'}"], PROG))
    config, with_adapters = found
    assert (config.serve.deployment.max_replicas, len(config.keys() or ())) == (4, 1)
    assert set(with_adapters.serve.adapters) == {"pirate", "team/poet"}


def test_the_example_is_valid_and_open_to_this_machine_only():
    config = load_serve_config(["--config=examples/configs/serve.yaml"], PROG)
    assert config.serve.service.model == "dray/tiny-pair"
    assert (config.serve.host, config.keys(), config.serve.page) == ("127.0.0.1", None, True)
    assert config.edge_settings().page_examples[0] == "Tell me a story about a raven and a lighthouse."
    assert config.serve.batches.path == "out/serve/batches"


def test_a_model_without_a_name_of_its_own_has_that_of_its_folder(text_pair, tmp_path, capsys):
    path = tmp_path / "serve.yaml"
    path.write_text(f"models: {{target: {text_pair[0]}, device: cpu}}\nserve: {{model: null, open: true}}\n")
    assert load_serve_config([f"--config={path}"], PROG).serve.service.model == load().serve.service.model
    assert serve.main([f"--config={path}", "--dry-run"]) == 0
    assert "Serving 'target' at" in capsys.readouterr().out


def test_no_limit_for_a_request_is_refused(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("models: {target: t}\nserve: {open: true, request_timeout_s: null}\n")
    with pytest.raises(ValueError, match=r"serve.request_timeout_s: input should be a valid number, got None"):
        load_serve_config([f"--config={path}"], PROG)


def test_a_dry_run_prints_what_would_be_served(text_pair, capsys):
    target, draft = text_pair
    flags = ["--serve.open", "--dry-run"]
    assert serve.main(["--models.target", target, "--models.draft", draft, "--models.device=cpu", *flags]) == 0
    said = capsys.readouterr().out
    assert "Serving 'target' at http://127.0.0.1:8000/v1" in said
    assert "engine:  dray, drafter model, coupled" in said
    assert "keys:    none: everyone who can reach the port is answered" in said


def test_a_lossy_verification_is_served_with_a_warning(text_pair, capsys, caplog):
    target, draft = text_pair
    flags = ["--models.target", target, "--models.draft", draft, "--models.device=cpu", "--serve.open", "--dry-run"]
    assert serve.main([*flags, "--engine.verification=unadjusted"]) == 0
    warning = "the texts do not have the target's distribution (verification: unadjusted)"
    assert warning in capsys.readouterr().out
    assert warning in caplog.text
    caplog.clear()
    assert serve.main([*flags, "--engine.verification=rejection"]) == 0
    assert not caplog.text


def test_the_application_tells_its_service_what_its_texts_are(text_pair, monkeypatch):
    made = []
    monkeypatch.setattr(serving, "make_application", lambda models, *rest, **more: made.append(models[0].service))
    for verification in ("coupled", "rejection", "unadjusted"):
        flags = ("--models.device=cpu", f"--engine.verification={verification}")
        config = load("--models.target", text_pair[0], *flags)
        serving._application(config, *serving.settled_models(config))
    assert [service.exact for service in made] == ["proved", "no", "no"]
    assert [bool(service.warning) for service in made] == [False, False, True]


def test_a_missing_model_is_a_bad_configuration(tmp_path, capsys):
    assert serve.main(["--models.target", str(tmp_path), "--models.device=cpu", "--serve.open"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def fingerprint(target: str, *flags: str) -> str:
    """Return the fingerprint of the engine that this configuration describes."""
    config = load("--models.target", target, "--models.device=cpu", *flags)
    return serving.settled_models(config)[0][0].fingerprint


def test_the_fingerprint_covers_the_model_and_all_that_changes_text(text_pair, tmp_path):
    target, copy = text_pair[0], tmp_path / "copy"
    shutil.copytree(target, copy)
    first = fingerprint(target)
    assert fingerprint(str(copy)) == first
    assert fingerprint(target, "--engine.num_slots=2", "--models.draft", text_pair[1]) == first
    assert fingerprint(target, "--engine.max_model_len=50") != first
    assert fingerprint(target, "--models.dtype=bfloat16") != first
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert fingerprint(str(copy)) != first


def test_under_rejection_the_fingerprint_covers_the_drafts_too(text_pair):
    target, draft = text_pair
    rejection, coupled = ((f"--engine.verification={rule}",) for rule in ("rejection", "coupled"))
    changes = (
        ("--models.draft", draft),
        ("--models.draft", draft, "--engine.num_speculative_tokens=3"),
        ("--models.draft", draft, "--engine.drafter=ngram"),
        ("--models.draft", draft, "--engine.draft_length=fixed"),
        ("--models.draft", target),
    )
    assert len({fingerprint(target, *rejection, *flags) for flags in changes}) == len(changes)
    assert len({fingerprint(target, *coupled, *flags) for flags in changes}) == 1, "no draft changes a coupled text"
    rejection = (*changes[0], *rejection)
    assert fingerprint(target, *rejection, "--engine.num_slots=2") == fingerprint(target, *rejection)


@pytest.mark.parametrize(
    ("flags", "said", "is_warned"),
    [
        (["--serve.open", "--serve.share_drafts"], "without keys all clients are one", False),
        ([], "no key's texts or prompts serve another one", False),
        (["--serve.share_drafts"], "may be shown what another key's requests wrote (serve.share_drafts)", True),
        (["--serve.share_prefixes"], "tell that another key sent a prompt before (serve.share_prefixes)", True),
    ],
)
def test_what_keys_share_is_said_at_the_start(flags, said, is_warned, text_pair, monkeypatch, capsys, caplog):
    monkeypatch.setenv("SOME_KEYS", "sk-first-key-of-all")
    keys = [] if "--serve.open" in flags else ["--serve.key_variables=SOME_KEYS"]
    assert serve.main(["--models.target", text_pair[0], "--models.device=cpu", "--dry-run", *keys, *flags]) == 0
    assert said in capsys.readouterr().out
    assert (said in caplog.text) is is_warned


def test_vllms_index_of_all_texts_is_refused_unless_keys_share_drafts(monkeypatch):
    monkeypatch.setenv("SOME_KEYS", "sk-first-key-of-all")
    keys, vllm = "--serve.key_variables=SOME_KEYS", ["--engine.backend=vllm", "--engine.drafter=suffix"]
    with pytest.raises(ValueError, match="vLLM looks up in the texts of all API keys; say"):
        serving.settled_models(load(keys, *vllm, is_open=False))
    of_each_row = '{"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 0}'
    for flags in (
        [keys, *vllm, "--serve.share_drafts"],
        [keys, vllm[0], f'--engine.vllm={{"speculative_config": {of_each_row}}}'],
        [keys, vllm[0], "--engine.drafter=ngram"],
        ["--serve.open", *vllm],
    ):
        serving._check_sharing(load(*flags, is_open=False))
