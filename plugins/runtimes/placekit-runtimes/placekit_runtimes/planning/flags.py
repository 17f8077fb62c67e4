"""Flags of command lines: the ones that `read_lines` reads, and the ones that it may ignore."""

from __future__ import annotations

from placekit_runtimes.planning.question import RuntimeName


def _table(text: str) -> dict[str, str]:
    """The last name in a line, by each name of the line."""
    rows = [line.split() for line in text.strip().splitlines()]
    return {name: row[-1] for row in rows for name in row}


def _words(text: str) -> set[str]:
    return set(text.split())


LLAMACPP = _table("""
-m --model
-hf -hfr --hf-repo
-hff --hf-file
-ngl --gpu-layers --n-gpu-layers
-ts --tensor-split
-sm --split-mode
-mg --main-gpu
-dev --device
-ot --override-tensor
-cmoe --cpu-moe
-ncmoe --n-cpu-moe
-c --ctx-size
-np --n-parallel --parallel
-ctk --cache-type-k
-ctv --cache-type-v
-fa --flash-attn
-ub --ubatch --ubatch-size
-b --batch --batch-size
--rpc
-nkvo --no-kv-offload
-mm --mmproj
-fit --fit
""")
"""Flags of llama.cpp; LLAMA_ARG_X stands for --x."""
BENCH = LLAMACPP | _table("""
-p --n-prompt
-n --n-gen
""")
VLLM = _table("""
--model
-pp --pipeline-parallel-size
-tp --tensor-parallel-size
-q --quantization
--max-model-len
--max-num-seqs
--max-num-batched-tokens
--gpu-memory-utilization
--cpu-offload-gb
--kv-cache-dtype
""")
TABLES: dict[str, tuple[RuntimeName, dict[str, str]]] = {
    "llama-server": ("llamacpp", LLAMACPP), "llama-cli": ("llamacpp", LLAMACPP), "llama-bench": ("llamacpp", BENCH),
    "vllm": ("vllm", VLLM),
}  # fmt: skip
IGNORED = {
    "llamacpp": _words("""
--host --port --alias -a --api-key --api-key-file --path --api-prefix --timeout -to --slots --no-slots --props --metrics
--jinja --no-jinja --chat-template --chat-template-file --chat-template-kwargs --reasoning --reasoning-format
--reasoning-budget --skip-chat-parsing --webui --no-webui --ui --no-ui --threads -t --threads-batch -tb --threads-http
--prio --poll --cpu-mask -C --numa --temp --temperature --top-k --top-p --min-p --typical --seed -s --samplers
--repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --xtc-probability --xtc-threshold --mirostat
--dry-multiplier --grammar --grammar-file --json-schema -j --logit-bias -p --prompt -f --file -n --predict --n-predict
--ignore-eos --interactive -i -cnv -no-cnv --conversation --no-conversation -st --single-turn -sys --system-prompt
--color --simple-io --verbose -v -lv --log-verbosity --log-file --log-disable --log-colors --log-prefix --log-timestamps
--mmap --no-mmap -mmp --mlock --direct-io -dio --load-mode --no-warmup --warmup --cont-batching -cb --no-context-shift
--context-shift --cache-reuse --cache-prompt --cache-ram --slot-save-path --ctx-checkpoints --keep --perf --no-perf
--hf-token -hft --offline --no-mmproj --kv-unified -kvu --verbose-prompt --check-tensors -r --repetitions -o --output
--progress --no-host --list-devices --model-url --ssl-key-file --ssl-cert-file --tags --fit-target -fitt --kv-offload
"""),
    "vllm": _words("""
--host --port --api-key --served-model-name --chat-template --chat-template-content-format --tokenizer --tokenizer-mode
--trust-remote-code --dtype --revision --seed --download-dir --load-format --tool-call-parser --reasoning-parser
--enable-auto-tool-choice --enable-reasoning --uvicorn-log-level --disable-log-requests --disable-log-stats --root-path
--enable-log-requests --generation-config --override-generation-config --response-role --ssl-keyfile --ssl-certfile
--allowed-origins --hf-token --distributed-executor-backend --middleware --max-log-len --limit-mm-per-prompt
--enable-prompt-tokens-details --enable-prefix-caching --no-enable-prefix-caching --enable-chunked-prefill
"""),
}
"""Flags that change neither where tensors are nor, in this model of the machine, how fast they are read."""
SWITCHES = ("--enable-", "--disable-", "--no-", "--enforce-eager", "--trust-remote-code", "--async-scheduling")
"""Beginnings of vLLM's flags that take no value, so that the model may follow."""
