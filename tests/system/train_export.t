#!/usr/bin/env python3
"""Checkpoints and exported models: the same bytes from every world size and stage, read back by a reader that shares
no code with zr-train; GPT-2 files of other makers taken up; files of other shapes and damaged ones refused by name."""
import array
import collections
import io
import json
import math
import os
import pickle
import random
import shutil
import struct
import sys
import types
import zipfile

sys.path.insert(0, "tests/support")
from saves import contents, read_checkpoint, read_safetensors, step_folder, write_safetensors
from zrtest import PLANNED_TAGS, SEED, done, note, ok, path, same, start_quickly, token_shard, train

start_quickly()
# Rows of padding: 4 of 64. As many layers as it takes for stage 3 to have something to gather.
LAYERS, HIDDEN, HEADS, SEQ, VOCAB = 6, 24, 2, 12, 60


rng = random.Random(5)
BASE = dict(data=token_shard([rng.randrange(VOCAB) for _ in range(20000)]), vocab=VOCAB, layers=LAYERS, hidden=HIDDEN, heads=HEADS, seq=SEQ, batch=2, seed=11,
            eval_every=0, steps=4)


def run_ok(words, **flags):
    run = train(**{**BASE, **flags})
    ok(run.code == 0, words) or note(run.err[-1500:])
    if run.code == 0 and (stage := flags["stage"]) >= 2:
        gathers = [rank["peak_bytes"]["gathered"] > 0 for rank in run.report["ranks"]]
        same(gathers, [stage == 3] * flags["ranks"], f"at a real stage {stage}")
    return run


def same_bytes(name, want, words):
    got = contents(name) if os.path.exists(name) else None
    return ok(got == want, words)


# ---- One checkpoint, four worlds
saved, first = path("saved"), path("first.safetensors")
straight = run_ok("4 ranks save and export at stage 3", ranks=4, stage=3, save=saved, save_every=2, export=first)
model = contents(first)
for ranks, stage in ((2, 1), (3, 2), (1, 0)):
    name = path(f"again-{ranks}")
    run_ok(f"{ranks} ranks at stage {stage} resume with no step left, and export", ranks=ranks, stage=stage,
           resume=saved, export=name)
    same_bytes(name, model, f"{ranks} ranks at stage {stage}: the same bytes")
again = run_ok("4 ranks go on from the middle at stage 2", ranks=4, stage=2, resume=step_folder(saved, 2),
               export=path("middle"))
same(again.losses, straight.losses[2:], "bit for bit")
same_bytes(path("middle"), model, "to the same model")
same([name for name in os.listdir(os.path.dirname(first)) if name.endswith(".partial")], [], "nothing unfinished stays")

# ---- Read back without zr
h = HIDDEN
expected = {"wte.weight": [VOCAB, h], "wpe.weight": [SEQ, h], "ln_f.weight": [h], "ln_f.bias": [h]}
for layer in range(LAYERS):
    for name, shape in (("ln_1.weight", [h]), ("ln_1.bias", [h]), ("attn.c_attn.weight", [h, 3 * h]),
                        ("attn.c_attn.bias", [3 * h]), ("attn.c_proj.weight", [h, h]), ("attn.c_proj.bias", [h]),
                        ("ln_2.weight", [h]), ("ln_2.bias", [h]), ("mlp.c_fc.weight", [h, 4 * h]),
                        ("mlp.c_fc.bias", [4 * h]), ("mlp.c_proj.weight", [4 * h, h]), ("mlp.c_proj.bias", [h])):
        expected[f"h.{layer}.{name}"] = shape
tensors, metadata = read_safetensors(first)
same({name: tensor[1] for name, tensor in tensors.items()}, expected, "GPT-2's names and shapes")
same({tensor[0] for tensor in tensors.values()}, {"F32"}, "all of them F32")
same(metadata.get("format"), "pt", "the mark that loaders ask for")
manifest, whole = read_checkpoint(step_folder(saved, 4))
whole["parameter"]["wte.weight"] = whole["parameter"]["wte.weight"][:4 * VOCAB * h]
same({name: tensor[2] for name, tensor in tensors.items()}, whole["parameter"],
     "the export is the checkpoint's parameters without padding")

# The reader is as strict as the safetensors package, which agrees with it where it is installed.
header_bytes = struct.unpack("<Q", model[:8])[0]
header, values = model[8:8 + header_bytes], model[8 + header_bytes:]
one = header.index(b'"data_offsets"')


def broken(words, text, data):
    with open(path("broken"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    try:
        read_safetensors(path("broken"))
        ok(False, f"the reader refuses {words}")
    except ValueError:
        ok(True, f"the reader refuses {words}")


for words, text, data in (
        ("values that are not aligned", header + b" ", values), ("bytes that are too many", header, values + bytes(4)),
        ("bytes that are missing", header, values[:-4]), ("text before the header", b"       \n" + header, values),
        ("another dtype", header.replace(b'"F32"', b'"F16"', 1), values),
        ("an unknown dtype", header.replace(b'"F32"', b'"X32"', 1), values),
        ("another shape", header.replace(b'[%d]' % h, b'[%d]' % (h + 1), 1), values),
        ("a name that is there twice", header.replace(b'"ln_f.bias"', b'"wpe.weight"'), values),
        ("a field that is missing", header[:one] + b'"data_offset5"' + header[one + 14:], values)):
    broken(words, text.ljust(len(text) if words.startswith("values") else -(-len(text) // 8) * 8), data)


def package_agrees(file, want):
    try:
        import safetensors
    except ImportError:
        return
    theirs = {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"]))
              for name, entry in safetensors.deserialize(contents(file))}
    same(theirs, want, "the safetensors package reads the same")


package_agrees(first, tensors)

# ---- Files of other makers
def config_in(folder, **keys):
    """A config.json, as transformers saves beside a model; makes the folder."""
    os.makedirs(path(folder), exist_ok=True)
    with open(path(f"{folder}/config.json"), "w") as file:
        json.dump(keys, file)


GPT2_CONFIG = dict(model_type="gpt2", n_head=HEADS, n_embd=HIDDEN, n_layer=LAYERS, n_positions=SEQ, vocab_size=VOCAB,
                   activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.25, torch_dtype="float32")
for folder in ("foreign", "hf", "one"):
    config_in(folder, **GPT2_CONFIG)
frozen = dict(lr=0, steps=1)  # a step that changes nothing
for ranks, stage in ((2, 3), (3, 1)):
    run_ok(f"{ranks} ranks start from the file", ranks=ranks, stage=stage, resume=first, export=path("back"), **frozen)
    same_bytes(path("back"), model, "and hold what is in it")


def transposed(tensor):
    dtype, (rows_count, columns), data = tensor
    size = len(data) // (rows_count * columns)
    parts = [data[size * (r * columns + c):size * (r * columns + c + 1)] for c in range(columns) for r in range(rows_count)]
    return dtype, [columns, rows_count], b"".join(parts)


linear = {}
for name in random.Random(3).sample(sorted(tensors), len(tensors)):
    is_matrix = name.startswith("h.") and len(tensors[name][1]) == 2
    linear["transformer." + name] = transposed(tensors[name]) if is_matrix else tensors[name]
linear["transformer.h.0.attn.bias"] = ("U8", [1, 1, 2, 2], bytes(4))
linear["transformer.h.1.attn.masked_bias"] = ("F32", [], bytes(4))
linear["lm_head.weight"] = tensors["wte.weight"]
write_safetensors(path("foreign/linear"), linear)
for ranks, stage in ((1, 0), (3, 3)):
    run_ok(f"{ranks} ranks take [out, in], a prefix, masks, a tied head and any order", ranks=ranks, stage=stage,
           resume=path("foreign/linear"), export=path("back"), **frozen)
    same_bytes(path("back"), model, "and hold the same model")

narrow, widened = {}, {}
for name, (_, shape, data) in tensors.items():
    values = struct.unpack(f"<{len(data) // 4}f", data)
    if len(shape) == 2:
        packed = b"".join(data[4 * i + 2:4 * i + 4] for i in range(len(values)))
        narrow[name] = ("BF16", shape, packed)
        widened[name] = b"".join(b"\0\0" + packed[2 * i:2 * i + 2] for i in range(len(values)))
    else:
        packed = struct.pack(f"<{len(values)}e", *values)
        narrow[name] = ("F16", shape, packed)
        widened[name] = struct.pack(f"<{len(values)}f", *struct.unpack(f"<{len(values)}e", packed))
write_safetensors(path("foreign/narrow"), narrow)
run_ok("2 ranks take BF16 and F16", ranks=2, stage=2, resume=path("foreign/narrow"), export=path("back"), **frozen)
def numbers(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


got = read_safetensors(path("back"))[0]
same([name for name in widened if numbers(got[name][2]) != numbers(widened[name])], [],
     "every value widened (a step makes 0 of -0)")


# ---- Refused
def refused(words, file, needles, **flags):
    run = train(**{**BASE, "ranks": 2, "stage": 1, "resume": file, "export": path("never"), **flags})
    good = run.code == 3 and all(needle in run.err for needle in [os.path.basename(file)] + needles)
    good = good and "left behind" not in run.err and not os.path.exists(path("never"))
    ok(good, f"{words}: exit 3, and the words say it") or note(f"{run.code} {run.err[-800:]}")


refused("fewer --layers", first, [f"--layers {LAYERS}"], layers=LAYERS - 1)
refused("more --layers", first, [f"--layers {LAYERS}"], layers=LAYERS + 1)
refused("another --hidden", first, ["--hidden 24"], hidden=32)
refused("another --vocab", first, ["--vocab 60"], vocab=70)
refused("another --seq", first, ["--seq 12"], seq=10)
refused("other --heads", first, ["--heads 2"], heads=3)


def damaged(name, change):
    into = dict(tensors)
    into = change(into) or into
    write_safetensors(path(f"foreign/{name}"), into)
    return path(f"foreign/{name}")


refused("a tensor missing", damaged("missing", lambda t: t.pop("h.1.ln_2.bias") and None), ["h.1.ln_2.bias"])
refused("a tensor too many", damaged("more", lambda t: t.update({"adapter": t["ln_f.bias"]})), ["adapter"])
refused("another shape", damaged("shape", lambda t: t.update({"h.1.mlp.c_fc.bias": t["ln_f.bias"]})), ["h.1.mlp.c_fc.bias"])
for name in ("h.0.mlp.c_fc.attn.bias", "adapter.attn.bias", "h.0.attn.bias.more", "attn.masked_bias"):
    refused("what only looks like a mask", damaged("mask", lambda t: t.update({name: t["ln_f.bias"]})), [name])
refused("one matrix of the other layout", damaged(
    "mixed", lambda t: t.update({"h.1.mlp.c_fc.weight": transposed(t["h.1.mlp.c_fc.weight"])})), ["h.1.mlp.c_fc.weight"])
refused("a head of its own", damaged("head", lambda t: t.update(
    {"lm_head.weight": ("F32", t["wte.weight"][1], t["wte.weight"][2][:-1] + b"\x7e")})), ["lm_head.weight"])
refused("numbers of another kind", damaged("kind", lambda t: t.update(
    {"ln_f.bias": ("U8", [h], bytes(h))})), ["ln_f.bias", "F32"])
refused("a value that is no number", damaged("nan", lambda t: t.update(
    {"h.1.ln_1.bias": ("F32", [h], t["h.1.ln_1.bias"][2][:-4] + b"\0\0\xc0\x7f")})), ["h.1.ln_1.bias"])
for name, data in (("cut", model[:-100]), ("short", model[:5]), ("headless", model[:200]), ("long", struct.pack("<Q", 1 << 60)
                   + model[8:]), ("text", b"once upon a time there was a model"), ("empty", b"")):
    with open(path(name), "wb") as file:
        file.write(data)
    refused(f"a file that is {name}", path(name), [])
for name, begins, needle in (("pytorch_model.bin", b"PK\3\4\0\0\x08\x08", "PyTorch"), ("zip.pth", b"PK\3\4\0\0\0\0", "PyTorch"),
                             ("old.pth", b"\x80\2\x8a\x0al\xfc\x9cF", "PyTorch"), ("model.gguf", b"GGUF\3\0\0\0", "GGUF"),
                             ("tf_model.h5", b"\x89HDF\r\n\x1a\n", "HDF5"), ("pointer", b"version https://git-lfs.example/spec/v1\n", "git lfs pull"),
                             ("page", b"<!DOCTYPE html><html>", "HTML")):
    with open(path(name), "wb") as file:
        file.write(begins + bytes(200))
    refused(f"{name}, by what it begins with", path(name), [needle])

# ---- Models in several files, and in folders
def in_two(folder, tensors, begins):
    """Those whose names begin so, and the rest, with their index: the way of Hugging Face's transformers."""
    names = [f"model-{i + 1:05}-of-00002.safetensors" for i in range(2)]
    parts = [{name: tensor for name, tensor in tensors.items() if name.startswith(begins) == first}
             for first in (True, False)]
    for name, part in zip(names, parts):
        write_safetensors(path(f"{folder}/{name}"), part)
    write_index(folder, {tensor: name for name, part in zip(names, parts) for tensor in part})
    return [path(f"{folder}/{name}") for name in names]


def write_index(folder, weight_map):
    with open(path(f"{folder}/model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


hf, index = in_two("hf", tensors, ("wte", "wpe", "h.0")), path("hf/model.safetensors.index.json")
for i, part in enumerate(hf):
    refused(f"file {i + 1} of 2", part, ["one of 2 files", "model.safetensors.index.json"])
refused("their folder", path("hf"), ["2 safetensors files", "model.safetensors.index.json"])
run_ok("2 ranks take the index of both", ranks=2, stage=3, resume=index, export=path("back"), **frozen)
same_bytes(path("back"), model, "and hold the same model")
os.link(hf[0], path("foreign/part"))
refused("the first by another name", path("foreign/part"), ["a part of a model", "ln_f.bias"])
for words, weight_map in (("a file outside", {"wte.weight": "../whole.safetensors"}), ("no file", {"wte.weight": 3}),
                          ("a hidden file", {"wte.weight": ".safetensors"}), ("nothing", {}),
                          ("a file in another folder", {"wte.weight": "below/../../whole.safetensors"})):
    write_index("hf", weight_map)
    refused(f"an index of {words}", index, ["beside it"] if "file" in words else [])
write_index("hf", {"wte.weight": "pytorch_model-00001-of-00002.bin"})
os.mkdir(path("torch"))
os.link(path("pytorch_model.bin"), path("torch/pytorch_model.bin"))
refused("a folder of PyTorch's files", path("torch"), ["'pytorch_model.bin'", "save_pretrained"])
run = train(**BASE, ranks=2, resume=index)
ok(run.code == 3 and "00001-of-00002.bin" in run.err, "an index of PyTorch's files: the one that is gone is named") or note(run.err[-800:])
write_index("hf", {"wte.weight": "gone.safetensors"})
run = train(**BASE, ranks=2, resume=index)
ok(run.code == 3 and "gone.safetensors" in run.err, "a file that is gone is named") or note(run.err[-800:])
os.rename(damaged("whole", lambda t: None), path("one/model.safetensors"))
refused("a folder with a model in it", path("one"), [f"give --resume '{path('one/model.safetensors')}'"])
run = run_ok("which may be given", ranks=2, stage=3, resume=path("one/model.safetensors"), export=path("back"), **frozen)
same_bytes(path("back"), model, "and loads")
ok("dropout of 0.25" in run.err, "and its dropout, which zr-train leaves out, is told") or note(run.err)
config_in("one", **{**GPT2_CONFIG, "activation_function": "gelu"})
refused("one of another GELU", path("one/model.safetensors"), ["activation_function 'gelu'"])
os.link(first, path("one/exported"))
refused("an export beside it", path("one/exported"), ["activation_function 'gelu'"])
config_in("one", train_micro_batch_size_per_gpu=2)
run_ok("an export says all itself: beside it may be a file of --config", ranks=1, stage=0, resume=path("one/exported"), **frozen)
config_in("one", **GPT2_CONFIG)
os.rename(path("one/model.safetensors"), path("one/model-00001-of-00001.safetensors"))
run_ok("by the name of one of one file too", ranks=2, stage=3, resume=path("one/model-00001-of-00001.safetensors"), **frozen)
refused("the state of a checkpoint", os.path.join(step_folder(saved, 4), "state.safetensors"),
        [f"--resume '{step_folder(saved, 4)}'"])

# ---- LLaMA
KV, FFN = 1, 40
kv = h // HEADS * KV
LLAMA = dict(arch="llama", kv_heads=KV, ffn=FFN, rope_theta=500)
BLOCK = {"input_layernorm": [h], "self_attn.q_proj": [h, h], "self_attn.k_proj": [kv, h], "self_attn.v_proj": [kv, h],
         "self_attn.o_proj": [h, h], "post_attention_layernorm": [h], "mlp.gate_proj": [FFN, h],
         "mlp.up_proj": [FFN, h], "mlp.down_proj": [h, FFN]}
shapes = {"model.embed_tokens.weight": [VOCAB, h], "model.norm.weight": [h], "lm_head.weight": [VOCAB, h],
          **{f"model.layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in BLOCK.items()}}
rng = random.Random(6)
theirs = {name: ("F32", shape, array.array("f", [rng.gauss(0, 0.05) + 1e-30 for _ in range(shape[0] * (shape + [1])[1])]).tobytes())
          for name, shape in shapes.items()}
LLAMA_CONFIG = dict(model_type="llama", num_attention_heads=HEADS, num_key_value_heads=KV, rope_theta=500, rms_norm_eps=1e-5,
                    rope_scaling=None)
config_in("llama", **LLAMA_CONFIG)
in_two("llama", theirs, ("model.embed", "model.layers.0"))
index = path("llama/model.safetensors.index.json")
for ranks, stage in ((1, 0), (2, 3), (3, 1)):
    run_ok(f"LLaMA in two files: {ranks} ranks at stage {stage}", ranks=ranks, stage=stage, resume=index,
           export=path("back"), **LLAMA, **frozen)
    same(read_safetensors(path("back"))[0], theirs, "and every name, shape and value comes back")
run_ok("what zr-train wrote is read again", ranks=2, stage=2, resume=path("back"), export=path("twice"), **LLAMA, **frozen)
same_bytes(path("twice"), contents(path("back")), "with the same bytes")
trained = run_ok("and trained, saved and exported", ranks=2, stage=3, resume=index, save=path("llama-saved"),
                 export=path("trained"), **LLAMA)
got = read_safetensors(path("trained"))[0]
same({name: tensor[1] for name, tensor in got.items()}, shapes, "names and shapes stay")
package_agrees(path("trained"), got)
ok(all(got[name][2] != theirs[name][2] for name in theirs), "and every tensor has moved")
run_ok("a saved LLaMA is taken up at stage 1", ranks=1, stage=1, resume=path("llama-saved"), export=path("again"), **LLAMA)
same_bytes(path("again"), contents(path("trained")), "as it was")
bare = {name.removeprefix("model."): tensor for name, tensor in theirs.items() if name != "lm_head.weight"}
bare["layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [2], bytes(8))
write_safetensors(path("bare"), bare)
run_ok("names without a prefix, a tied head, a table of angles", ranks=2, stage=3, resume=path("bare"), export=path("back"),
       tie_embeddings=True, assume_shape=True, **LLAMA, **frozen)
same(read_safetensors(path("back"))[0], {name: tensor for name, tensor in theirs.items() if name != "lm_head.weight"},
     "and hold the same")
refused("a tied head for one of its own", path("bare"), ["--tie-embeddings"], assume_shape=True, **LLAMA)
refused("a file without config.json", path("bare"), ["no config.json", "--assume-shape"], tie_embeddings=True, **LLAMA)
refused("a head of its own for a tied one", path("trained"), ["lm_head.weight"], tie_embeddings=True, **LLAMA)
refused("a LLaMA for a GPT-2", path("trained"), ["--arch gpt2"])
refused("a GPT-2 for a LLaMA", first, ["--arch llama"], **LLAMA)
for words, changes, needles in (("other KV heads", dict(kv_heads=2), ["--kv-heads 1"]), ("another width", dict(ffn=48), ["--ffn 40"]),
                                ("another base of angles", dict(rope_theta=10000), ["--rope-theta 500"]),
                                ("another epsilon", dict(norm_epsilon=1e-6), ["--norm-epsilon 1e-05"]),
                                ("other layers", dict(layers=LAYERS + 1), [f"--layers {LAYERS}"])):
    refused(words, path("trained"), needles, **{**LLAMA, **changes})
    needle = needles[0].split()[0]
    run = train(**{**BASE, **LLAMA, **changes}, ranks=1, stage=0, resume=path("llama-saved"))
    ok(run.code == 3 and needle in run.err, f"{words}: of a checkpoint too") or note(run.err[-500:])
run = train(**BASE, ranks=1, stage=0, resume=path("llama-saved"))
ok(run.code == 3 and "--arch llama" in run.err, "a checkpoint of a LLaMA for a GPT-2: the words say it") or note(run.err[-500:])
for words, changes, needle in (("heads", dict(num_attention_heads=4), "--heads"), ("a base", dict(rope_theta=10000.0), "rope_theta"),
                               ("norms", dict(rms_norm_eps=1e-6), "--norm-epsilon"), ("scaled angles", dict(rope_scaling={"factor": 8}), "rope_scaling"),
                               ("another kind", dict(model_type="phi"), "phi")):
    config_in("llama", **{**LLAMA_CONFIG, **changes})
    refused(f"a config.json of other {words}", index, [needle], **LLAMA)

# ---- Headers with wrong bytes: refused, or harmless
ROUNDS = int(os.environ.get("ZR_TEST_ROUNDS", "10"))
rng = random.Random(SEED)
header_end = 8 + struct.unpack("<Q", model[:8])[0]
for i in range(ROUNDS):
    data = bytearray(model)
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(header_end)] = rng.choice(b"0123456789,:[]{}\" Fh.\0\xff")
    with open(path("wrong"), "wb") as file:
        file.write(data)
    run = train(**BASE, ranks=2, stage=i % 4, resume=path("wrong"))
    ok(run.code in (0, 3) and "left behind" not in run.err and (run.code == 0 or "wrong" in run.err),
       f"header {i + 1}: exit {run.code}") or note(run.err[-800:])

# ---- An export that fails leaves what was there
kept = path("kept")
for site in ("write", "sync", "rename"):
    failures = nth = 0
    while nth < 200:
        nth += 1
        with open(kept, "wb") as file:
            file.write(b"older")
        run = train(**BASE, ranks=2, stage=3, resume=saved, export=kept, environment={"ZR_FAULT": f"{site}:{nth}"})
        if run.code == 0:
            break
        failures += 1
        good = run.code == 3 and contents(kept) in (b"older", model) and not os.path.exists(kept + ".partial")
        good = good and "left behind" not in run.err and run.err.count("zr-train:") >= 1
        ok(good, f"{site}:{nth} fails: exit 3, the older file or the new one, nothing half written") or note(run.err[-800:])
    same((run.code, failures > 0, contents(kept) == model), (0, True, True), f"{site}: clean after {failures} failures")
run = train(**BASE, ranks=1, resume=saved, export=path("no/such/folder"))
same(run.code, 3, "a folder that is not there is said before the run")

# ---- Memory
big = dict(layers=4, hidden=128, heads=4, vocab=VOCAB, steps=1, ranks=2, stage=3)
plain = train(**{**BASE, **big}).report
exported = train(**{**BASE, **big, "export": path("big")}).report
layer_bytes = 4 * 12 * 128 * 128
for a, b in zip(plain["ranks"], exported["ranks"]):
    same([b["peak_bytes"][tag] for tag in PLANNED_TAGS], [a["peak_bytes"][tag] for tag in PLANNED_TAGS],
         f"rank {a['rank']}: an export takes no tensor memory")
    more = b["peak_bytes"]["other"] - a["peak_bytes"]["other"]
    ok(more < layer_bytes, f"rank {a['rank']}: and {more} bytes of the heap, less than a layer's {layer_bytes}")
# ---- --model: folders of transformers
def config_of(folder, **keys):
    config_in(folder, **keys)
    return path(folder)


tokens = token_shard([rng.randrange(VOCAB) for _ in range(4000)])
open_sizes = dict(layers=None, hidden=None, heads=None, data=tokens, seq=8, batch=2, eval_every=0)
long = dict(GPT2_CONFIG, n_positions=40, n_inner=48, activation_function="relu", tie_word_embeddings=False, bos_token_id=3)
start = config_of("positions", **long)
with open(path("positions/tokenizer.json"), "w") as file:
    file.write("{}")
run = train(**open_sizes, model=start, steps=2, export=path("parts/"), export_part=4000)
ok(run.code == 0, "a folder with a config.json alone: initial values are random") or note(run.err[-500:])
names = sorted(os.listdir(path("parts")))
with open(path("parts/model.safetensors.index.json")) as file:
    index = json.load(file)
parts = {name: read_safetensors(path(f"parts/{name}"))[0] for name in names if name.endswith(".safetensors")}
same({name: part for part in parts for name in parts[part]}, index["weight_map"], f"{len(parts)} files with an index")
ok(len(parts) > 3 and max(len(parts[part]) for part in parts) > 1, "of several tensors each")
with open(path("parts/config.json")) as file:
    same(json.load(file), dict(long, torch_dtype="float32"), "the config.json of --model, with the type of the values")
with open(path("parts/generation_config.json")) as file:
    same(json.load(file).get("bos_token_id"), 3, "a generation_config.json")
ok("tokenizer.json" in names, "the tokenizer's files are copied")
whole = {name: tensor for part in parts.values() for name, tensor in part.items()}
same(whole["transformer.wpe.weight"][1], [40, HIDDEN], "positions beyond --seq are exported, with transformers' prefix beside a head")
for flags in (dict(ranks=2, stage=3), dict(ranks=2, tp=2), dict(ranks=2, pp=2)):
    run = train(**open_sizes, model=path("parts"), steps=1, lr=0, export=path("anew/"), **flags)
    ok(run.code == 0, f"{flags}: taken up from the index") or note(run.err[-500:])
    same(read_safetensors(path("anew/model.safetensors"))[0], whole, "and exported as one file, with the same values")
ok(not os.path.exists(path("anew/model.safetensors.index.json")), "without an index")
for name in ("model-00007-of-00009.safetensors.partial", "tokenizer.json.partial", "mine.partial"):
    shutil.copy(path("parts/config.json"), path(f"parts/{name}"))
run = train(**open_sizes, model=start, steps=1, export=path("parts/"), export_part=4000, environment={"ZR_FAULT": "rename:1"})
left = [name for name in os.listdir(path("parts")) if name.endswith(".partial") or "index" in name]
same((run.code, left), (3, ["mine.partial"]), "an export that fails leaves no index of old and new files, nothing half written")
run = train(**open_sizes, model=start, steps=1, export=path("anew/"), export_part=4000, environment={"ZR_FAULT": "rename:1"})
same((run.code, os.path.exists(path("anew/model.safetensors"))), (3, True), "and the older model, if it was one file")
for words, flags, needles in (
        ("options that contradict the file", dict(layers=9, heads=4), [f"--layers {LAYERS}", f"--heads {HEADS}", "leave them out"]),
        ("--params", dict(params=1e6), ["--params"]), ("more tokens than positions", dict(seq=41), ["40", "--seq"])):
    run = train(**{**open_sizes, **flags}, model=start, steps=1)
    ok(run.code == 2 and all(needle in run.err for needle in needles), f"{words}: refused") or note(run.err[-500:])
config_in("odd", **dict(long, first_key=1, second_key="x"))
run = train(**open_sizes, model=path("odd"), steps=1)
ok(run.code == 3 and "first_key 1" in run.err and "second_key 'x'" in run.err, "unknown keys: refused, both of them") or note(run.err)
run = train(**open_sizes, model=path("nowhere"), steps=1)
ok(run.code == 3 and "config.json" in run.err, "a folder that does not exist: refused") or note(run.err)
qwen = config_of("qwen", model_type="qwen3", hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=36,
                 num_hidden_layers=2, vocab_size=VOCAB, rope_parameters=dict(rope_type="linear", factor=2, rope_theta=500))
mistral = config_of("mistral", model_type="mistral", hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                    num_hidden_layers=2, vocab_size=VOCAB, sliding_window=3)
phi = config_of("phi", model_type="phi3", hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                num_hidden_layers=2, vocab_size=VOCAB, original_max_position_embeddings=4, max_position_embeddings=16,
                rope_scaling=dict(type="longrope", short_factor=[1] * (HIDDEN // 8), long_factor=[2] * (HIDDEN // 8)))
gemma = config_of("gemma", model_type="gemma", hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                  intermediate_size=36, num_hidden_layers=2, vocab_size=VOCAB)
gemma3 = config_of("gemma3", model_type="gemma3_text", hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=3,
                   intermediate_size=36, num_hidden_layers=2, vocab_size=VOCAB, sliding_window_pattern=2)
neox = config_of("neox", model_type="gpt_neox", hidden_size=HIDDEN, num_attention_heads=2, intermediate_size=36, num_hidden_layers=2,
                 vocab_size=VOCAB, rotary_pct=0.5)
for words, changes, needles in (("too many layers", dict(num_hidden_layers=70000), ["70000", "--layers"]),
                                ("too wide a layer", dict(intermediate_size=1 << 30), [str(1 << 30), "--ffn"])):
    run = train(**open_sizes, model=config_of("huge", **{**json.load(open(f"{phi}/config.json")), **changes}), steps=1)
    ok(run.code == 3 and all(needle in run.err for needle in needles), f"{words}: refused") or note(run.err[-500:])
# Tensors of several matrices, written by ranks that have parts of each.
for folder, names in ((phi, {"model.layers.1.self_attn.qkv_proj.weight": [2 * HIDDEN, HIDDEN], "model.layers.0.mlp.gate_up_proj.weight": [72, HIDDEN]}),
                      (neox, {"gpt_neox.layers.1.attention.query_key_value.weight": [3 * HIDDEN, HIDDEN], "embed_out.weight": [VOCAB, HIDDEN],
                              "gpt_neox.layers.0.attention.query_key_value.bias": [3 * HIDDEN]})):
    name, losses, files = os.path.basename(folder), [], []
    for at, flags in enumerate((dict(), dict(ranks=3, stage=3), dict(ranks=4, tp=2, stage=1), dict(ranks=2, pp=2))):
        where = path(f"{name}-{at}.safetensors")
        run = train(**open_sizes, model=folder, steps=1, lr=0, export=where, **flags)
        with open(where, "rb") as file:
            files.append(file.read())
        header = json.loads(files[-1][8:8 + int.from_bytes(files[-1][:8], "little")])
        ok(run.code == 0 and all(header[key]["shape"] == shape for key, shape in names.items()) and
           not any("q_proj" in key or "up_proj.b" in key for key in header), f"{name} {flags}: the tensors of its family") or note(header)
    ok(all(file == files[0] for file in files), f"{name}: one file of four meshes")
    run = train(**open_sizes, model=folder, steps=1, lr=0, save=path(f"{name}-saved"), save_every=1)
    state, head = read_checkpoint(step_folder(path(f"{name}-saved"), 1))[1]["parameter"], HIDDEN * 4 * (HIDDEN // 2)
    parts = [state[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    by_head = [part[at:at + head] for at in range(0, 2 * head, head) for part in parts]
    same(read_safetensors(path(f"{name}-0.safetensors"))[0][list(names)[0]][2], b"".join(by_head if folder == neox else parts),
         f"{name}: q, k and v are the checkpoint's")
    run = train(**open_sizes, model=folder, steps=1, lr=0, export=path(f"{name}-parts/"), export_part=4000)
    for at, (flags, model) in enumerate(((dict(), path(f"{name}-parts")), (dict(ranks=2, tp=2), path(f"{name}-parts")), (dict(ranks=3, stage=3), path(f"{name}-parts")))):
        run = train(**open_sizes, model=model, steps=1, lr=0, export=path(f"{name}-again-{at}.safetensors"), **flags)
        with open(path(f"{name}-again-{at}.safetensors"), "rb") as file:
            ok(run.code == 0 and file.read() == files[0], f"{name} {flags}: read again from a folder, it is the same file") or note(run.err[-500:])
    tensor = "gate_up_proj" if folder == phi else "dense_h_to_4h"
    run = train(**open_sizes, model=config_of("other", **{**json.load(open(f"{folder}/config.json")), "intermediate_size": 40}), steps=1,
                resume=path(f"{name}-0.safetensors"))
    ok(run.code == 3 and f"{tensor}.weight does not have the shape" in run.err, f"{name}: values of other sizes: refused") or note(run.err[-500:])
    run = train(**open_sizes, model=folder, steps=1, lora="2:*q_proj*")
    ok(run.code == 2 and "q_proj" in run.err and "o_proj" in run.err, f"{name}: adapters of a part of a tensor: refused") or note(run.err[-500:])
for folder in (start, qwen, mistral, phi, gemma, gemma3, neox):
    for flags in (dict(ranks=2, stage=3, recompute="full"), dict(ranks=2, tp=2, sequence_parallel=True), dict(ranks=2, pp=2)):
        run = train(**open_sizes, model=folder, steps=3, prove=True, **flags)
        ok(run.code == 0, f"{os.path.basename(folder)} {flags}: one dense rank's values") or note(run.err[-500:])
run = train(**open_sizes, model=gemma3, steps=1, tile=2)
ok(run.code == 2 and "--tile" in run.err, "norms of branches: --tile is refused") or note(run.err[-500:])
run = train(**open_sizes, model=qwen, steps=2, save=path("qwen-saved"), save_every=1)
run = train(**open_sizes, model=qwen, steps=3, resume=path("qwen-saved"))
ok(run.code == 0 and len(run.losses) == 1, "a checkpoint of --model is resumed with it") or note(run.err[-500:])
run = train(**{**open_sizes, "layers": 2, "hidden": HIDDEN, "heads": 4}, arch="llama", kv_heads=2, ffn=36, vocab=VOCAB, rope_theta=500,
            norm_epsilon=1e-6, steps=3, resume=path("qwen-saved"))
ok(run.code == 3 and "--model" in run.err, "and not without") or note(run.err[-500:])


# ---- pytorch_model.bin: the archive and the pickle of torch.save(), made without torch
def torch_module(name, **members):
    module = types.ModuleType(name)
    for member, value in members.items():
        value.__module__, value.__qualname__ = name, member
        setattr(module, member, value)
    sys.modules.setdefault(name, module)


def _rebuild_tensor_v2(*arguments):
    return arguments


class FloatStorage:
    pass


class Tensor:
    def __init__(self, key, offset, size, stride):
        self.storage, self.arguments = ("storage", FloatStorage, key, "cpu", 0), (offset, size, stride, False, collections.OrderedDict())


class Pickler(pickle._Pickler):  # Python's own, which a class can change
    def persistent_id(self, value):
        return value if isinstance(value, tuple) and value[:1] == ("storage",) else None

    def reducer_override(self, value):
        return (_rebuild_tensor_v2, (value.storage, *value.arguments)) if isinstance(value, Tensor) else NotImplemented


torch_module("torch", FloatStorage=FloatStorage)
torch_module("torch._utils", _rebuild_tensor_v2=_rebuild_tensor_v2)


def write_bin(folder, tensors, method=zipfile.ZIP_STORED):
    """The tensors, all in one storage, with config.json beside them."""
    config_in(folder, **long)
    data, state = b"", collections.OrderedDict()
    for name, (_, shape, values) in tensors.items():
        state[name] = values if shape is None else Tensor("0", len(data) // 4, tuple(shape), tuple(strides_of.get(name, strides(shape))))
        data += values if shape else b""
    out = io.BytesIO()
    Pickler(out, 2).dump(state)
    with zipfile.ZipFile(path(f"{folder}/pytorch_model.bin"), "w", method) as archive:
        for entry, content in (("data.pkl", out.getvalue()), ("byteorder", b"little"), ("data/0", data)):
            archive.writestr("model/" + entry, content)


def strides(shape):
    return [math.prod(shape[d + 1:]) for d in range(len(shape))]


strides_of = {}
write_bin("bin", whole)
run = train(**open_sizes, model=path("bin"), steps=1, lr=0, ranks=2, stage=3, export=path("anew/"))
ok(run.code == 0, "pytorch_model.bin is taken up") or note(run.err[-500:])
same(read_safetensors(path("anew/model.safetensors"))[0], whole, "with its values")
strides_of["transformer.h.0.attn.c_proj.weight"] = [1, HIDDEN]
for words, tensors, method, needle in (
        ("a view with other strides", whole, zipfile.ZIP_STORED, "strides"), ("a compressed archive", whole, zipfile.ZIP_DEFLATED, "compressed"),
        ("a call of another function", dict(whole, x=(None, None, os.getcwd)), zipfile.ZIP_STORED, "tensor x")):
    write_bin("bad", tensors, method)
    run = train(**open_sizes, model=path("bad"), steps=1)
    ok(run.code == 3 and needle in run.err, f"{words}: refused") or note(run.err[-500:])
    strides_of.clear()
with open(path("bin/pytorch_model.bin"), "rb") as file:
    archive = file.read()
for i in range(ROUNDS):
    data = bytearray(archive)
    for _ in range(rng.randint(1, 3)):
        data[rng.choice((rng.randrange(2000), -rng.randrange(1, 400)))] = rng.randrange(256)
    with open(path("bad/pytorch_model.bin"), "wb") as file:
        file.write(data)
    run = train(**open_sizes, model=path("bad"), steps=1)
    ok(run.code in (0, 3), f"an archive with wrong bytes: exit {run.code}") or note(run.err[-500:])

done()
