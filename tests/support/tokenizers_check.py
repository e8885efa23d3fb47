#!/usr/bin/env python3
"""`make check-tokenizers`: zr-train tokenize beside the `tokenizers` package, on 10 MB of English, source code, many scripts, emoji,
code points at random and long runs, as one document and by lines. Nine tokenizers are trained here; the tokens must be equal, and the
speeds on one thread are printed. The virtual environment is that of check-pytorch. It is not in CI.

    tokenizers_check.py [NAME..]         these tokenizers
    tokenizers_check.py --golden FILE    what the virtual environment's Python runs: writes tests/unit/train/tokenizers.json
    tokenizers_check.py --train DIR      likewise: trains the tokenizers on DIR/train.txt
    tokenizers_check.py --encode DIR NAME   likewise: encodes DIR/text.txt as a whole and by lines"""
import array
import glob
import json
import os
import random
import re
import subprocess
import sys
import time
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SCRIPTS = [(0x4e00, 0x9fa5), (0x3041, 0x3096), (0x30a1, 0x30fa), (0xac00, 0xd7a3), (0x410, 0x44f), (0x391, 0x3a1), (0x3b1, 0x3c9),
           (0x5d0, 0x5ea), (0x627, 0x64a), (0x904, 0x939), (0xe01, 0xe30), (0xc0, 0xff), (0x100, 0x17f), (0x1e00, 0x1eff), (0x10a0, 0x10c5),
           (0x1200, 0x1248), (0x300, 0x36f), (0x2100, 0x214f), (0xff01, 0xff5e), (0x2460, 0x249b), (0x1d400, 0x1d454)]
VOCABULARY = {"gpt2": 32000, "llama3": 50000, "qwen": 20000, "o200k": 12000, "digits": 8000, "llama2": 16000, "mistral": 8000,
              "unigram": 16000, "unigram-nfkc": 12000}


# ---- The text ------------------------------------------------------------------------------------------------

def scripts(rng):
    start, end = rng.choice(SCRIPTS)
    word = "".join(chr(rng.randint(start, end)) for _ in range(rng.randint(1, 9)))
    if rng.random() < .1:
        word = rng.choice("aeiouAEOn") + chr(rng.randint(0x300, 0x315)) + word
    return word + rng.choice([" ", " ", " ", "  ", "\n", ". ", "\u3000", "\u00a0", "\t", "", "'s ", "'LL ", "\r\n"])


def emoji(rng):
    face = chr(rng.choice([rng.randint(0x1f600, 0x1f64f), rng.randint(0x1f300, 0x1f5ff), rng.randint(0x2600, 0x26ff)]))
    return (face + ("\u200d" + chr(rng.randint(0x1f468, 0x1f469)) if rng.random() < .2 else "") + ("\ufe0f" if rng.random() < .2 else "") +
            (chr(rng.randint(0x1f3fb, 0x1f3ff)) if rng.random() < .2 else "") + rng.choice(["", "", " "]))


def any_code(rng):
    """Assigned long ago: the package's normal forms are those of an old Unicode."""
    while True:
        code = rng.choice([rng.randint(1, 0x7f), rng.randint(0x80, 0x7ff), rng.randint(0x800, 0xffff), rng.randint(0x10000, 0x1ffff)])
        if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs"):
            return chr(code)


def run_of(rng):
    count = min(int(rng.paretovariate(.6)) if rng.random() < .05 else rng.randint(1, 40), 20000)
    if rng.random() < .3:
        return str(rng.getrandbits(3 * min(count, 4000)))
    return rng.choice([" ", "1", "0", "9", "\n", "\t", "-", "=", "a", "\u2581", ". "]) * count


def drawn(make, bytes_count, rng):
    pieces, done_bytes = [], 0
    while done_bytes < bytes_count:
        pieces.append(make(rng))
        done_bytes += len(pieces[-1].encode())
    return "".join(pieces)


def make_parts():
    rng = random.Random(7)
    bible = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True).stdout
    sources = "".join(open(name, encoding="utf-8").read() for name in sorted(glob.glob("zero/**/*.c", recursive=True) + glob.glob("alloc/**/*.c", recursive=True)))
    return [bible[:4200000], sources[:3000000]] + [drawn(make, size, rng) for make, size in
                                                   ((scripts, 1500000), (emoji, 300000), (any_code, 800000), (run_of, 700000))]


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


# ---- The tokenizers ------------------------------------------------------------------------------------------

def build(name, paths, vocabulary):
    """One tokenizer of the package's, trained on files."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # pylint: disable=import-error

    def split(expression, behavior="isolated", invert=False, prefix=False):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), behavior, invert),
                                        pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])

    def around(text, **tokens):
        return processors.TemplateProcessing(single=text, pair=text + " $B:1", special_tokens=list(tokens.items()))

    specials, bos = ["<unk>", "<s>", "</s>"], around("<s> $A", **{"<s>": 1})
    by_bytes = {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "llama3": split(LLAMA3), "qwen": split(QWEN),
                "o200k": split(O200K, "removed", True, True),
                "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])}
    if name in by_bytes:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = by_bytes[name], decoders.ByteLevel()
        made.normalizer = normalizers.NFC() if name == "qwen" else None
        made.train(paths, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if name == "llama3":
            made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around("<|begin|> $A", **{"<|begin|>": 0})])
            made.model.ignore_merges = True
        if name == "qwen":
            made.add_tokens(["<tool>", "LORD"])
    elif name in ("llama2", "mistral"):
        made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        made.train(paths, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=specials + BYTES, show_progress=False, limit_alphabet=2000,
                                              max_token_length=16))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False) if name == "mistral" else None
        if name == "llama2":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        made.post_processor = bos
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        spaces = [normalizers.Strip(False, True), normalizers.Replace(Regex(" {2,}"), " ")]
        first = [normalizers.Precompiled(charsmap())] if name == "unigram-map" else [normalizers.NFKC()]
        made.normalizer = None if name == "unigram" else normalizers.Sequence(first + spaces)
        made.train(paths, trainers.UnigramTrainer(vocab_size=vocabulary, special_tokens=specials, unk_token="<unk>", show_progress=False))
        made.post_processor = around("$A </s>", **{"</s>": 2})
    return made


def charsmap():
    """A double array of three replacements, of one, two and three bytes."""
    entries = {b"~": "-", "é".encode(): "e", "ﬁ".encode(): "fi", "e\u0301".encode(): "E"}
    texts, offsets, children = b"", {}, {}
    for key, text in entries.items():
        offsets[key] = len(texts)
        texts += text.encode() + b"\0"
        for at in range(len(key)):
            children.setdefault(key[:at], set()).add(key[at])
    units, bases = {0: 0}, iter(range(256, 1 << 20, 256))

    def place(key, at):
        base = next(bases)
        units[at] = units[at] & 0xff | (at ^ base) << 10 | (key in offsets) << 8
        if key in offsets:
            units[base] = 1 << 31 | offsets[key]
        for byte in children.get(key, ()):
            units[base ^ byte] = byte
            place(key + bytes([byte]), base ^ byte)

    place(b"", 0)
    count = max(units) // 256 * 256 + 256
    return (4 * count).to_bytes(4, "little") + b"".join(units.get(at, 0).to_bytes(4, "little") for at in range(count)) + texts


# ---- What the virtual environment runs -----------------------------------------------------------------------

TEXTS = ["", "In the beginning God created the heaven and the earth.", "  two  spaces\n\n\nand\ttabs \r\n", "It's 1234567 o'clock, I'LL say: \"no!\" ",
         "Größe, naïve, e\u0301tude, ﬁne ~ x", "日本語とカタカナ、한국어", "🙂👨\u200d👩🏽 <s> a</s>b <|end|>LORD", "\u2581\u2581x \u2581 y", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa        ",
         "\u00a0\u3000\x01\x7f𝐀Ⅷ½", "the man of the land of the king of the house of the lord of the earth and the sea and all that is in them"]


def golden(path):
    found = {}
    folder = os.path.dirname(os.path.abspath(path))
    corpus = os.path.join(folder, "train.txt")
    write(corpus, make_parts()[0][:60000] + "".join(text + "\n" for text in TEXTS[:5]) * 5)
    for name in [*VOCABULARY, "unigram-map"]:
        made = build(name, [corpus], 560 if name in ("llama2", "mistral") else 300)
        answers = [made.encode(text) for text in TEXTS]
        found[name] = {"file": json.loads(made.to_str()), "answers": [
            {"ids": answer.ids, "text": made.decode(answer.ids, skip_special_tokens=False)} for answer in answers]}
    os.remove(corpus)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"texts": TEXTS, "tokenizers": found}, file, ensure_ascii=False, separators=(",", ":"))


def encode(folder, name):
    from tokenizers import Tokenizer  # pylint: disable=import-error
    made = Tokenizer.from_file(os.path.join(folder, name, "tokenizer.json"))
    text = open(os.path.join(folder, "text.txt"), encoding="utf-8", newline="").read()
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    start = time.monotonic()
    whole = made.encode(text).ids
    between = time.monotonic()
    parts = [made.encode(line).ids for line in lines if line]
    times = [between - start, time.monotonic() - between]
    for kind, ids in (("file", whole), ("line", [token for part in parts for token in part])):
        with open(os.path.join(folder, name, kind + ".ids"), "wb") as file:
            array.array("i", ids).tofile(file)
    print(json.dumps(times))


# ---- The comparison ------------------------------------------------------------------------------------------

def ours(folder, name, kind):
    """Tokens, and the seconds that the command prints."""
    from zrtest import BUILD
    out = os.path.join(folder, name, kind)
    subprocess.run(["rm", "-rf", out], check=True)
    run = subprocess.run([f"{BUILD}/bin/zr-train", "tokenize", os.path.join(folder, "text.txt"), "-o", out, "--tokenizer", os.path.join(folder, name),
                          "--eos", "none", "--document-per", kind, "--threads", "1"], capture_output=True, text=True, check=False)
    found = re.search(r"MB in ([0-9.]+) s, (\d)-byte", run.stderr)
    if not found:
        return run.stderr, 0
    tokens = array.array("H" if found[2] == "2" else "i")
    with open(os.path.join(out, "train_000000.bin"), "rb") as file:
        tokens.frombytes(file.read()[1024:])
    return array.array("i", tokens), float(found[1])


def check(names):
    from pytorch_check import install, install_models
    from zrtest import BUILD, done, note, ok, skip
    python = install()
    if not python or not install_models(python):
        skip("PyPI is out of reach")
        return done()
    folder = os.path.abspath(os.path.join(BUILD, "tokenizers"))
    os.makedirs(folder, exist_ok=True)
    parts = make_parts()
    size = sum(len(part.encode()) for part in parts)
    write(os.path.join(folder, "text.txt"), "\n".join(parts))
    write(os.path.join(folder, "train.txt"), "\n".join(part[len(part) // 2:][:len(part) // 6] for part in parts))
    write(os.path.join(folder, "words.txt"), parts[0][:700000] + parts[1][:600000])
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([python, __file__, "--train", folder, *names], check=True)
    for name in names:
        run = subprocess.run([python, __file__, "--encode", folder, name], capture_output=True, text=True, check=True, env=environment)
        for kind, theirs in zip(("file", "line"), json.loads(run.stdout)):
            tokens, seconds = ours(folder, name, kind)
            wanted = array.array("i")
            with open(os.path.join(folder, name, kind + ".ids"), "rb") as file:
                wanted.frombytes(file.read())
            ok(tokens == wanted, f"{name}, documents by {kind}: {len(wanted)} tokens are those of the package")
            if isinstance(tokens, str):
                note(tokens)
            else:
                note(f"{size / 1e6 / max(seconds, .05):.1f} MB/s beside {size / 1e6 / theirs:.1f} of the package, one thread each")
    return done()


def main(arguments):
    if arguments[:1] == ["--golden"]:
        return golden(arguments[1])
    if arguments[:1] == ["--encode"]:
        return encode(*arguments[1:])
    if arguments[:1] == ["--train"]:
        for name in arguments[2:]:
            path = os.path.join(arguments[1], name)
            os.makedirs(path, exist_ok=True)
            if not os.path.exists(os.path.join(path, "tokenizer.json")):
                build(name, [os.path.join(arguments[1], "words.txt" if "unigram" in name else "train.txt")], VOCABULARY[name]).save(
                    os.path.join(path, "tokenizer.json"))
        return None
    return check(arguments or list(VOCABULARY))


if __name__ == "__main__":
    main(sys.argv[1:])
