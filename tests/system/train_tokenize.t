#!/usr/bin/env python3
"""zr-train tokenize: shards by documents, the same on any number of threads, whole or not there; and the text of zr-train sample
and of a run by the same tokenizer. The tokens themselves are tests/unit/train/tokenizer_test.c's."""
import array
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import ZR_TRAIN, done, note, ok, path, same, train

with open("tests/unit/train/tokenizers.json", encoding="utf-8") as file:
    ANSWERS = json.load(file)
FOLDER = path("model")
TEXTS = [text for text in ANSWERS["texts"] if text and "\n" not in text and "\r" not in text]
IDS = [answer["ids"] for text, answer in zip(ANSWERS["texts"], ANSWERS["tokenizers"]["qwen"]["answers"]) if text in TEXTS]
END, VOCAB = 1, 302  # <|end|>


def write(name, text):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as to:
        to.write(text if isinstance(text, bytes) else text.encode())
    return path(name)


def tokenize(*words, out="tokens", fresh=True, tokenizer=FOLDER):
    if fresh:
        shutil.rmtree(path(out), ignore_errors=True)
    return subprocess.run([ZR_TRAIN, "tokenize", *words, "-o", path(out), "--tokenizer", tokenizer], capture_output=True, text=True)


def shards(out="tokens"):
    found = {}
    for name in sorted(os.listdir(path(out))):
        with open(os.path.join(path(out), name), "rb") as shard:
            raw = shard.read()
        head, tokens = array.array("i", raw[:12]), array.array("H", raw[1024:])
        same(list(head), [20240520, 1, len(tokens)], f"{name} has the header of its {len(tokens)} tokens")
        found[name] = list(tokens)
    return found


def whole(**options):
    return [token for ids in IDS for token in ids + [END]]


write("model/tokenizer.json", json.dumps(ANSWERS["tokenizers"]["qwen"]["file"]))
lines = write("lines.txt", "\n\n".join(TEXTS) + "\n")
jsonl = write("lines.jsonl", "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS))
run = tokenize(lines)
ok(run.returncode == 2 and "--eos" in run.stderr, f"a folder that names no eos: {run.stderr.strip()}")
write("model/tokenizer_config.json", json.dumps({"eos_token": {"content": "<|end|>"}, "model_max_length": int(1e30)}))
run = tokenize(lines, "--document-per", "line")
ok(run.returncode == 0 and "--vocab" in run.stderr, f"lines: {run.stderr.strip()}")
same(shards(), {"train_000000.bin": whole()}, "each line is a document with its end; lines without text are none")
run = tokenize(lines, "--document-per", "line", fresh=False)
ok(run.returncode == 2 and "has shards" in run.stderr, "a folder with shards is refused")
for threads in ("1", "3"):
    tokenize(jsonl, "--threads", threads, "--shard-tokens", "50")
    found = shards()
    same([token for name in sorted(found) for token in found[name]], whole(), f"the texts of JSON lines, on {threads} threads, in shards")
    ok(all(len(tokens) == 50 for tokens in list(found.values())[:-1]), "each of which is full but the last")
tokenize(jsonl, "--val-share", "0.25", "--eos", "none")
found = shards()
same(found["val_000000.bin"], [token for i, ids in enumerate(IDS) if (i + 1) // 4 > i // 4 for token in ids], "every fourth document is for validation")
for text, words, problem in ((b"ab\xff", [], "byte 2 is not UTF-8"), ('{"text":1}', [], 'key "text"'), ("a", ["--val-share", "0.1"], "give more documents"),
                             ("a", ["--eos", "nothing"], "is no token"), ("", [], "empty"), ("a", ["--threads", "0"], "from 1 to 256")):
    name = write("bad.jsonl" if "key" in problem else "bad.txt", text)
    run = tokenize(name, *words)
    ok(run.returncode in (2, 3) and problem in run.stderr, f"refused: {run.stderr.strip()}")
    same([name for name in os.listdir(path("tokens")) if os.path.exists(path("tokens"))] if os.path.exists(path("tokens")) else [], [], "and no shard is left")

# ---- A run that is killed --------------------------------------------------------------------------------------
for number, left in ((signal.SIGTERM, []), (signal.SIGKILL, ["train_000000.bin.partial"])):
    pipe = path(f"pipe{number}")
    os.mkfifo(pipe)
    shutil.rmtree(path("tokens"), ignore_errors=True)
    killed = subprocess.Popen([ZR_TRAIN, "tokenize", pipe, "-o", path("tokens"), "--tokenizer", FOLDER, "--threads", "1", "--document-per", "line"])
    with open(pipe, "wb") as to:
        to.write(b"in the beginning\n" * (6 << 16))
        to.flush()
        end = time.monotonic() + 60
        while time.monotonic() < end and not (os.path.isdir(path("tokens")) and os.listdir(path("tokens"))):
            time.sleep(.01)
        killed.send_signal(number)
        same(killed.wait(), -number, f"signal {number} ends it")
    same(os.listdir(path("tokens")), left, "and leaves no half shard under a shard's name")

# ---- Text of a model -------------------------------------------------------------------------------------------
write("book.txt", "In the beginning God created the heaven and the earth.\n" * 300)
ok(tokenize(path("book.txt"), "--document-per", "line").returncode == 0, "a book as tokens")
run = train(data=path("tokens/train_*.bin"), vocab=VOCAB + 98, arch="llama", layers=1, hidden=32, heads=2, seq=32, batch=4, steps=40, lr=1e-2, eval_every=0,
            sample=12, temperature=0, prompt="In the begin", tokenizer=FOLDER, export=path("tuned/"))
ok(run.code == 0, "a model of it") or note(run.err)
small = train(data=write("small.bin", array.array("H", [1, 2] * 400).tobytes()), data_type="uint16", vocab=8, layers=1, hidden=32, heads=2, seq=32, batch=4, steps=1, eval_every=0,
              sample=2, prompt="zz", tokenizer=FOLDER)
ok(small.code == 0 and "beyond the model's vocabulary" in small.err and not small.report.get("sample"), "a prompt that the model cannot read: no sample, but the report") or note(small.err)
shutil.copy(path("model/tokenizer.json"), path("tuned/tokenizer.json"))
shutil.copy(path("model/tokenizer_config.json"), path("tuned/tokenizer_config.json"))


def sample(*words, given=None):
    return subprocess.run([ZR_TRAIN, "sample", "--model", path("tuned"), "--seq", "32", "--temperature", "0", *words], capture_output=True, text=True, input=given)


def evaluated(*words):
    got = subprocess.run([ZR_TRAIN, "eval", "--model", path("tuned"), "--seq", "32", "--json", "-", *words], capture_output=True, text=True)
    return json.loads(got.stdout) if got.returncode == 0 else got


made = sample("--prompt", "In the begin", "--sample", "12")
ok(made.returncode == 0 and made.stdout.startswith("In the begin") and len(made.stdout) > 14, f"zr-train sample: {made.stdout!r}") or note(made.stderr)
same(run.report["sample"], made.stdout[:-1], "the run's sample is the same text")
of_run = made
made = sample("--sample", "60", "--temperature", "100", "--top-k", "0")
ok(made.returncode == 0, "tokens of the model that the tokenizer lacks are not drawn") or note(made.stderr)
for words, problem in ((["--data", "x"], "does not take --data"), (["--tokenizer", path("none.json")], "cannot open")):
    made = sample(*words)
    ok(made.returncode in (2, 3) and problem in made.stderr, f"refused: {made.stderr.strip()}")
rest = of_run.stdout[len("In the begin"):-1]
at = max(rest.find(" "), 1)
same(sample("--prompt", "In the begin", "--sample", "12", "--stop", rest[at:at + 3]).stdout, f"In the begin{rest[:rest.find(rest[at:at + 3])]}\n", "--stop across tokens")
lines = sample("--prompts", "-", "--sample", "12", given="God\nIn the begin").stdout.splitlines()
same(json.loads(lines[1]), {"prompt": "In the begin", "text": of_run.stdout[:-1]}, "prompts of standard input")
bad = sample("--prompts", write("bad.txt", b"God\n\xffcreated\n"))
ok(bad.returncode == 3 and "line 2 of --prompts" in bad.stderr and "UTF-8" in bad.stderr, f"bad UTF-8: {bad.stderr.strip()}")
ok(tokenize(path("book.txt")).returncode == 0, "a book as one document")
numbers = shards()["train_000000.bin"][:-1]
as_text, as_tokens = evaluated(path("book.txt")), evaluated("--data-type", "uint16", write("book.bin", array.array("H", numbers).tobytes()))
same((as_text["loss"], as_text["tokens"], as_tokens["bits_per_byte"]), (as_tokens["loss"], len(numbers) - 1, None), "eval: a text has the loss of its tokens")
first = os.path.getsize(path("book.txt")) - as_text["bytes"]
ok(1 <= first <= 3, f"and its bytes without those of the first token, {first}")
mixed = evaluated(path("book.txt"), path("tokens/train_000000.bin"), "--ranks", "2", "--stage", "1")
same((mixed["tokens"], mixed["bits_per_byte"]), (2 * len(numbers) - 1, None), "texts and shards together")
bad = evaluated(path("bad.txt"))
ok(bad.returncode == 3 and "bad.txt" in bad.stderr and "UTF-8" in bad.stderr, f"eval of bad UTF-8: {bad.stderr.strip()}")
done()
