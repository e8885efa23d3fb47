#!/usr/bin/env python3
"""`make check-hf`: models that transformers 4 and 5 save, taken up by zr-train --model. Each row of the table is a
configuration; each is either imported, with transformers' loss on the same tokens to within 1e-5, or refused by the name
of a key. Sixty more are drawn from the families: each trains ten steps on one rank and on a mesh and is exported as a
folder; there from_pretrained() finds the loss that zr-train has, and the mesh's logits are within 1e-4. Five of them run on
all meshes.

GPT-2 runs by transformers' own attention: in transformers 4, PyTorch's ignores scale_attn_weights and scale_attn_by_inverse_layer_idx.
A hundred more have one key of theirs changed to what it cannot mean, removed, or added: zr-train refuses each by the key's name.

    tests/support/hf_check.py [4|5 ..]     needs a network at first: transformers and torch come from PyPI, 6 GB in BUILD/hf
    tests/support/hf_check.py --save DIR   what the virtual environment's Python runs: saves the models and their losses
    tests/support/hf_check.py --load DIR   likewise: loads the exported models

It is not in CI."""
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OPEN = dict(layers=None, hidden=None, heads=None)  # the options that train() gives by default
LAYERS, HIDDEN, HEADS, SEQ, VOCAB, FFN = 2, 24, 3, 16, 60, 42
CLOSE, CLOSE_LOGITS, STEPS, DRAWN, ON_ALL, MUTATED = 1e-5, 1e-4, 10, 60, 5, 100
EVALUATED, STRIDES = ("gpt2", "llama", "mistral"), (SEQ, 5)  # by zr-train eval
MESHES = [dict(ranks=2, stage=1), dict(ranks=2, stage=2, recompute="full"), dict(ranks=3, stage=3), dict(ranks=2, tp=2), dict(tile=2),
          dict(ranks=2, tp=2, sequence_parallel=True), dict(ranks=2, pp=2, accumulate=2), dict(ranks=4, tp=2, stage=1),
          dict(ranks=4, tp=2, pp=2, accumulate=2), dict(ranks=2, stage=3, offload_optimizer="cpu", offload_param="cpu")]
GPT2 = dict(n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, n_positions=SEQ, vocab_size=VOCAB, bos_token_id=0, eos_token_id=0)
LLAMA = dict(num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=FFN,
             vocab_size=VOCAB, max_position_embeddings=64, bos_token_id=0, eos_token_id=0)
SCALED = dict(factor=2.0, original_max_position_embeddings=8)

# Name: architecture, what differs from GPT2 or LLaMA, and the key that refuses it (None: imported). "rope" is written as the
# version does; "own_head" is put into the file beside a tied embedding.
ROWS = {
    "gpt2": ("gpt2", {}, None),
    "gpt2-positions": ("gpt2", dict(n_positions=1024), None),
    "gpt2-heads": ("gpt2", dict(n_head=6), None),
    "gpt2-tanh": ("gpt2", dict(activation_function="gelu_pytorch_tanh"), None),
    "gpt2-fast": ("gpt2", dict(activation_function="gelu_fast"), None),
    "gpt2-erf": ("gpt2", dict(activation_function="gelu"), None),
    "gpt2-relu": ("gpt2", dict(activation_function="relu"), None),
    "gpt2-inner": ("gpt2", dict(n_inner=66), None),
    "gpt2-epsilon": ("gpt2", dict(layer_norm_epsilon=1e-3), None),
    "gpt2-unscaled": ("gpt2", dict(scale_attn_weights=False), None),
    "gpt2-by-layer": ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), None),
    "gpt2-untied": ("gpt2", dict(tie_word_embeddings=False), None),
    "gpt2-upcast": ("gpt2", dict(reorder_and_upcast_attn=True, attn_implementation="eager"), None),
    "gpt2-dropout": ("gpt2", dict(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5), None),
    "gpt2-bf16": ("gpt2", dict(half=True), None),
    "gpt2-parts": ("gpt2", dict(parts=True), None),
    "gpt2-bin": ("gpt2", dict(bin=1), None),
    "gpt2-silu": ("gpt2", dict(activation_function="silu"), "activation_function"),
    "gpt2-cross": ("gpt2", dict(add_cross_attention=True), "add_cross_attention"),
    "gpt2-unknown": ("gpt2", dict(attention_temperature=2.0), "attention_temperature"),
    "llama": ("llama", {}, None),
    "llama-kv": ("llama", dict(num_key_value_heads=1), None),
    "llama-epsilon": ("llama", dict(rms_norm_eps=1e-3), None),
    "llama-theta": ("llama", dict(rope=dict(rope_type="default", rope_theta=123.0)), None),
    "llama-tied": ("llama", dict(tie_word_embeddings=True), None),
    "llama-swish": ("llama", dict(hidden_act="swish"), None),
    "llama-head-dim": ("llama", dict(head_dim=16), None),
    "llama-bias": ("llama", dict(attention_bias=True), None),
    "llama-mlp-bias": ("llama", dict(mlp_bias=True), None),
    "llama-limit": ("llama", dict(max_position_embeddings=8), None),
    "llama-dropout": ("llama", dict(attention_dropout=0.5), None),
    "llama-parts": ("llama", dict(parts=True), None),
    "llama-llama3": ("llama", dict(rope=dict(SCALED, rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0)), None),
    "llama-linear": ("llama", dict(rope=dict(rope_type="linear", factor=2.0)), None),
    "llama-dynamic": ("llama", dict(max_position_embeddings=8, rope=dict(rope_type="dynamic", factor=2.0)), None),
    "llama-yarn": ("llama", dict(rope=dict(SCALED, rope_type="yarn", beta_fast=4.0)), None),
    "llama-gelu": ("llama", dict(hidden_act="gelu"), "hidden_act"),
    "llama-partial": ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "llama-window": ("llama", dict(sliding_window=8), "sliding_window"),
    "llama-own-head": ("llama", dict(tie_word_embeddings=True, own_head=True), "tie_word_embeddings"),
    "llama-bin": ("llama", dict(bin=3, half=True, tie_word_embeddings=True), None),
    "mistral": ("mistral", dict(sliding_window=5), None),
    "qwen2": ("qwen2", dict(tie_word_embeddings=True), None),
    "qwen2-yarn": ("qwen2", dict(rope=dict(SCALED, rope_type="yarn")), None),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, max_window_layers=1, sliding_window=5), None),
    "qwen3-windows": ("qwen3", dict(head_dim=12, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                                    layer_types=["sliding_attention", "full_attention", "sliding_attention"]), None),
    "qwen3-other-windows": ("qwen3", dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=5, layer_types=[
        "sliding_attention", "sliding_attention", "full_attention", "full_attention"]), "layer_types"),
    "gemma": ("gemma", dict(head_dim=12), None),
    "gemma2": ("gemma2", dict(head_dim=12), "model_type"),
    "gemma3": ("gemma3_text", dict(head_dim=12, sliding_window=5, num_hidden_layers=3, query_pre_attn_scalar=20, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"], rope=dict(rope_type="linear", factor=4.0, rope_theta=700.0)), None),
    "gemma3-pattern": ("gemma3_text", dict(head_dim=8, sliding_window=64, num_hidden_layers=7, query_pre_attn_scalar=8), None),
    "gemma3-caps": ("gemma3_text", dict(head_dim=12, attn_logit_softcapping=50.0), "attn_logit_softcapping"),
    "neox": ("gpt_neox", {}, None),
    "neox-bin": ("gpt_neox", dict(bin=2, half=True), None),
    "phi3": ("phi3", dict(pad_token_id=0), None),
    "qwen3": ("qwen3", dict(head_dim=12), None),
    "phi": ("phi", {}, "model_type"),
}


NO_ROPE = (None, dict(rope_type="default", rope_theta=123.0))
ROPE = NO_ROPE + (dict(rope_type="linear", factor=2.0), dict(SCALED, rope_type="yarn"), dict(rope_type="dynamic", factor=3.0),
                  dict(SCALED, rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0))
LONG = [dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.5], long_factor=[1.0, 2.0, 4.5], original_max_position_embeddings=n) for n in (8, 32)]
WINDOWS = (dict(), dict(use_sliding_window=True, sliding_window=5, max_window_layers=1), dict(use_sliding_window=True, sliding_window=3, max_window_layers=0),
           dict(use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention", "full_attention"]))
TIED = (False, True)
# What a family varies; "" stands for keys that are drawn together.
FAMILIES = {
    "gpt2": {"n_positions": (SEQ, 40), "activation_function": ("gelu_new", "gelu", "relu"), "n_inner": (None, 66), "layer_norm_epsilon": (1e-5, 1e-3),
             "scale_attn_weights": (True, False), "scale_attn_by_inverse_layer_idx": (False, True), "tie_word_embeddings": (True, False)},
    "llama": {"num_key_value_heads": (4, 2), "rms_norm_eps": (1e-6, 1e-3), "rope": ROPE, "tie_word_embeddings": TIED, "head_dim": (6, 8),
              "attention_bias": TIED, "mlp_bias": TIED, "max_position_embeddings": (64, 8)},
    "mistral": {"num_key_value_heads": (4, 2), "sliding_window": (5, None, 64), "head_dim": (6, 10), "rope": NO_ROPE},
    "qwen2": {"num_key_value_heads": (2, 4), "tie_word_embeddings": TIED, "rope": ROPE, "": WINDOWS},
    "qwen3": {"num_key_value_heads": (2, 4), "head_dim": (6, 12), "attention_bias": TIED, "rope": NO_ROPE, "": WINDOWS},
    "gemma": {"num_key_value_heads": (2, 4), "head_dim": (6, 12), "tie_word_embeddings": (True, False), "rope": NO_ROPE, "attention_bias": TIED},
    "gemma3_text": {"num_key_value_heads": (2, 4), "head_dim": (6, 12), "tie_word_embeddings": (True, False), "rope": ROPE[:3], "attention_bias": TIED,
                    "query_pre_attn_scalar": (12, 7), "sliding_window": (5, 64),
                    "layer_types": (["sliding_attention", "full_attention"], ["sliding_attention"] * 2, ["full_attention"] * 2)},
    "gpt_neox": {"hidden_act": ("gelu", "gelu_new", "relu"), "use_parallel_residual": (True, False), "attention_bias": (True, False),
                 "tie_word_embeddings": TIED, "layer_norm_eps": (1e-5, 1e-3), "rope": NO_ROPE, "rotary_pct": (0.34, 0.67, 1.0)},
    "phi3": {"num_key_value_heads": (4, 2), "sliding_window": (None, 5), "rope": NO_ROPE + tuple(LONG), "tie_word_embeddings": TIED,
             "pad_token_id": (0,)},
}

# Keys that a changed file has one of; those without which there is no size.
NEEDED = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "n_embd", "n_layer")
COUNTS = {*NEEDED, "num_attention_heads", "n_head", *(key for family in FAMILIES.values() for key in family)} - {
    "", "rope", "pad_token_id", "max_position_embeddings"}


def drawn():
    """Configurations of all families, by numbers of a fixed seed."""
    rng, rows = random.Random(5), {}
    for i in range(DRAWN):
        family = list(FAMILIES)[i % len(FAMILIES)]
        sizes = dict(n_head=4) if family == "gpt2" else dict(num_attention_heads=4, num_key_value_heads=4)
        if family in ("gpt_neox",):
            del sizes["num_key_value_heads"]
        for key, values in FAMILIES[family].items():
            value = rng.choice(values)
            sizes.update(value if key == "" else {key: value})
        rows[f"{family}-{i}"] = (family, sizes, None)
    return rows


DRAWN_ROWS = drawn()


# ---- In the virtual environment
def settings_of(arch, changes, version):
    settings = {**(GPT2 if arch == "gpt2" else LLAMA), **changes}
    rope = settings.pop("rope", None)
    if arch == "gpt_neox":
        settings.pop("num_key_value_heads", None)
        theta = (rope or {}).get("rope_theta", 10000.0)
        settings.update(rotary_emb_base=theta)
    elif arch == "gemma3_text" and version >= 5:
        settings["rope_parameters"] = {"full_attention": {"rope_type": "default", "rope_theta": 1e6, **(rope or {})},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}
    elif rope and version >= 5:
        settings["rope_parameters"] = dict({"rope_theta": 10000.0}, **rope)
    elif rope or arch == "gemma3_text":
        settings.update(rope_local_base_freq=90.0) if arch == "gemma3_text" else None
        rope = rope or dict(rope_type="default", rope_theta=1e6)
        theta = rope.get("rope_theta", 10000.0)
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        if scaling["rope_type"] == "longrope":  # Phi-3 of transformers 4 has its limit beside them
            settings["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
            scaling["type"] = scaling.pop("rope_type")
        settings.update(rope_theta=theta, rope_scaling=None if arch == "phi3" and len(scaling) == 1 else scaling)
    return settings


def save_as_pickles(model, where, count):
    """The older form, pytorch_model.bin or several with an index; a tied head shares its storage."""
    import torch
    os.unlink(os.path.join(where, "model.safetensors"))
    tensors = model.state_dict()
    files = {name: f"pytorch_model-{i % count + 1:05}-of-{count:05}.bin" if count > 1 else "pytorch_model.bin" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        torch.save(type(tensors)((name, tensors[name]) for name in tensors if files[name] == file), os.path.join(where, file))
    if count > 1:
        with open(os.path.join(where, "pytorch_model.bin.index.json"), "w") as out:
            json.dump({"weight_map": files}, out)


def loss_by_windows(model, tokens, stride):
    """The mean loss of all tokens but the first, each predicted once, as in transformers' guide on perplexity with windows of SEQ + 1."""
    import torch
    nats, done = 0.0, 1
    for first in range(0, len(tokens), stride):
        window = tokens[first:first + SEQ + 1]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits.double()[0]
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="none")[done - first - 1:].sum().item()
        done = first + len(window)
        if done == len(tokens):
            return nats / (done - 1)


def save_models(folder):
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    version = int(transformers.__version__.split(".")[0])
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with open(os.path.join(folder, "tokens.json")) as file:
        every = torch.tensor(json.load(file))
    tokens = every[None, -SEQ - 1:]
    losses = {"version": transformers.__version__}
    for row, (arch, changes, refused_by) in {**ROWS, **DRAWN_ROWS}.items():
        settings = settings_of(arch, changes, version)
        half, parts, own_head, bins = (settings.pop(name, False) for name in ("half", "parts", "own_head", "bin"))
        eager = settings.pop("attn_implementation", "eager" if arch == "gpt2" else None)
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(arch, **settings)
        model = transformers.AutoModelForCausalLM.from_config(config, **({"attn_implementation": eager} if eager else {})).eval()
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                norm = "norm" in name or "ln_" in name
                tensor.normal_(1.0 if norm and name.endswith("weight") else 0.0, 0.2)
            if half:
                model = model.to(torch.bfloat16)
        where = os.path.join(folder, row)
        model.save_pretrained(where, **({"max_shard_size": 10000} if parts else {}))
        if own_head:
            file = os.path.join(where, "model.safetensors")
            tensors = load_file(file)
            tensors["lm_head.weight"] = torch.randn(VOCAB, HIDDEN)
            save_file(tensors, file, metadata={"format": "pt"})
        if bins:
            save_as_pickles(model, where, bins)
        if refused_by:  # transformers itself cannot run each of them
            continue
        if half:  # a new model's angles are not rounded
            tensors, model = model.state_dict(), transformers.AutoModelForCausalLM.from_config(config).eval().float()
            model.load_state_dict(tensors)
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits.double()
        losses[row] = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]).item()
        if row in EVALUATED:
            losses["eval " + row] = [loss_by_windows(model, every, stride) for stride in STRIDES]
    with open(os.path.join(folder, "losses.json"), "w") as file:
        json.dump(losses, file)


def load_models(folder):
    """The loss of each exported model, and how far its logits are from those of the row's first mesh."""
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with open(os.path.join(folder, "tokens.json")) as file:
        tokens = torch.tensor([json.load(file)[-SEQ - 1:]])
    found, first = {}, {}
    for name in sorted(name for name in os.listdir(folder) if ".mesh" in name):
        eager = dict(attn_implementation="eager") if name.startswith("gpt2") else {}
        model, report = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, name), output_loading_info=True, **eager)
        with torch.no_grad():
            logits = model.eval()(tokens[:, :-1]).logits.double()[0]
        far = (logits - first.setdefault(name.split(".mesh")[0], logits)).abs().max().item()
        missing = [len(report[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")]
        found[name] = [torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item(), far, sum(missing)]
    with open(os.path.join(folder, "loaded.json"), "w") as file:
        json.dump(found, file)


# ---- zr-train
def environment(version, home):
    """The Python that has transformers of a version, and its path; both have one torch."""
    python, packages = os.path.join(home, "venv", "bin", "python"), os.path.join(home, f"transformers-{version}")
    if not os.path.exists(os.path.join(home, "torch.done")):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(home, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch>=2.4,<2.7", "numpy"], check=True)
        open(os.path.join(home, "torch.done"), "w").close()
    if not os.path.exists(packages + ".done"):
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--target", packages, f"transformers>={version},<{version + 1}"],
                       check=True)
        open(packages + ".done", "w").close()
    return python, packages


def export(row, model, folder, tokens, last, meshes):
    """Trains on one rank and on meshes, and exports; returns the loss of the first on the tokens of `last`."""
    from zrtest import note, token_shard, train
    for at, mesh in enumerate([{}] + meshes):
        data = mesh.get("ranks", 1) // mesh.get("tp", 1) // mesh.get("pp", 1)
        run = train(data=token_shard(tokens), model=model, **OPEN, seq=SEQ, steps=STEPS, batch=12 // data // mesh.get("accumulate", 1), lr=1e-3,
                    eval_every=0, export=os.path.join(folder, f"{row}.mesh{at}/"), export_part=10000 if at else "5GB", **mesh)
        if run.code != 0:
            note(f"{row}: {mesh}: exit {run.code}: {run.err[-300:]}")
    run = train(data=token_shard(last), model=os.path.join(folder, f"{row}.mesh0"), **OPEN, seq=SEQ, steps=1, batch=1, lr=0, eval_every=1)
    return run.report["val_loss"] if run.code == 0 else 0


def mutate(config, rng):
    """Changes a key of a file that counts: a size, a number, a switch or a name. Returns the word that must name it."""
    inside = config.get("rope_parameters") or config.get("rope_scaling") or {}
    places = [(config, key) for key in config if key in COUNTS] + [(inside, key) for key in inside if "original" not in key and key[-7:] != "_factor"]
    at, key = rng.choice(places)
    kind = rng.randrange(4)
    if kind == 0:
        key = f"{key}_{rng.choice(['scale', 'alpha', 'norm', 'cap'])}"
        at[key] = rng.choice([2.0, True, "a", None])
    elif kind == 1 and key in NEEDED:
        del at[key]
    else:
        at[key] = rng.choice(["none of these", [], {"of": 1}, -3 if at[key] is None else [at[key]]])
    return key


def check_mutated(folder, tokens, version):
    """--dry-run reads a config.json whole."""
    from zrtest import note, ok, train
    rng, wrong = random.Random(9), []
    for at in range(MUTATED):
        row = rng.choice(list(DRAWN_ROWS))
        with open(os.path.join(folder, row, "config.json")) as file:
            config = json.load(file)
        key = mutate(config, rng)
        model = os.path.join(folder, f"mutated{at}")
        os.mkdir(model)
        with open(os.path.join(model, "config.json"), "w") as file:
            json.dump(config, file)
        run = train(data=tokens, model=model, **OPEN, seq=SEQ, dry_run=True)
        if run.code != 3 or key not in run.err:
            wrong.append(f"{row}: {key}: exit {run.code}: {run.err[-200:]}")
    ok(not wrong, f"transformers {version}: {MUTATED - len(wrong)} of {MUTATED} changed files are refused by the key's name") or \
        note("; ".join(wrong[:5]))


def check(version, home):
    from zrtest import ZR_TRAIN, note, ok, path, token_shard, train
    folder = path(f"transformers-{version}")
    os.mkdir(folder)
    # The last window of so short a shard is the only one that validates.
    rng = random.Random(4)
    tokens = [rng.randrange(VOCAB) for _ in range(4 * (SEQ + 1))]
    with open(os.path.join(folder, "tokens.json"), "w") as file:
        json.dump(tokens, file)
    python, packages = environment(version, home)

    def in_python(what):
        subprocess.run([python, os.path.abspath(__file__), what, folder], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "PYTHONPATH": packages, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})

    in_python("--save")
    with open(os.path.join(folder, "losses.json")) as file:
        losses = json.load(file)
    trained = [rng.randrange(VOCAB) for _ in range(2000)]
    exported = {}
    meshes = {row: MESHES if at < ON_ALL else [MESHES[at % len(MESHES)]] for at, row in enumerate(DRAWN_ROWS)}
    meshes.update((row, [MESHES[0]]) for row in meshes if "gemma3" in row and "tile" in meshes[row][0])  # its norms exclude --tile
    for row, (_, _, refused_by) in {**ROWS, **DRAWN_ROWS}.items():
        model = os.path.join(folder, row)
        run = train(data=token_shard(tokens), model=model, **OPEN, seq=SEQ, steps=1, batch=1, lr=0, eval_every=1)
        if run.code == 0 and refused_by:
            good, words = False, f"{row}: imported, and {refused_by} ought to refuse it"
        elif run.code == 0:
            error = abs(run.report["val_loss"] / losses[row] - 1)
            good = error <= CLOSE
            words = f"{row}: loss {losses[row]:.6f}, off by {error:.1e}"
            if row in DRAWN_ROWS:
                exported[row] = export(row, model, folder, trained, tokens, meshes[row])
        else:
            good = run.code == 3 and refused_by is not None and refused_by in run.err
            words = f"{row}: refused by {refused_by}" if good else f"{row}: refused, and not by {refused_by}"
        ok(good, f"transformers {losses['version']}: {words}") or note(f"exit {run.code}: {run.err[-600:]}")
    for row in EVALUATED:
        for stride, want in zip(STRIDES, losses["eval " + row], strict=True):
            line = [ZR_TRAIN, "eval", "--model", os.path.join(folder, row), "--seq", str(SEQ), "--stride", str(stride), "--json", "-", token_shard(tokens)]
            got = subprocess.run(line, capture_output=True, text=True)
            error = abs(json.loads(got.stdout)["loss"] / want - 1) if got.returncode == 0 else 1
            ok(error <= CLOSE, f"{row}: zr-train eval, {stride} apart: loss {want:.6f}, off by {error:.1e}") or note(got.stderr)
    check_mutated(folder, token_shard(tokens), losses["version"])
    in_python("--load")
    with open(os.path.join(folder, "loaded.json")) as file:
        loaded = json.load(file)
    for row in DRAWN_ROWS:
        found = [loaded[name] for name in loaded if name.startswith(row + ".mesh")]
        far = [abs(loaded[row + ".mesh0"][0] / exported[row] - 1) if exported.get(row) and found else 1, max([f[1] for f in found], default=1)]
        ok(len(found) == 1 + len(meshes[row]) and far[0] <= CLOSE and far[1] <= CLOSE_LOGITS and not any(f[2] for f in found),
           f"{row}: {len(meshes[row])} meshes, {STEPS} steps: the exported loss is off by {far[0]:.1e}, logits by {far[1]:.1e}")


def main():
    if sys.argv[1:2] in (["--save"], ["--load"]):
        (save_models if sys.argv[1] == "--save" else load_models)(sys.argv[2])
        return
    sys.path.insert(0, HERE)
    from zrtest import BUILD, done
    home = os.path.abspath(os.path.join(BUILD, "hf"))
    os.makedirs(home, exist_ok=True)
    for version in [int(version) for version in sys.argv[1:]] or (4, 5):
        check(version, home)
    done()


if __name__ == "__main__":
    main()
