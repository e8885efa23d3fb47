"""programs.py: programs that people have, as rows of a table, each run with zr's malloc and without: the results must be
the same. tests/system/preload.t runs the fast ones, tests/long/long_preload.t the rest."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, LONG_HANG, note, ok, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
SUITE = ("test_list test_dict test_threading test_multiprocessing_fork test_subprocess test_json test_pickle test_zlib "
         "test_sqlite3 test_mmap test_ssl test_gc test_capi test_os test_asyncio").split()
PYTHON = "/usr/bin/python3"  # Debian's, which has the suite in a package
POSTGRES = "/usr/lib/postgresql/15/bin"


def suite():
    """Those of the suite's tests that the package has."""
    code = "import importlib.util,sys\nfor t in sys.argv[1:]:\n  if importlib.util.find_spec('test.'+t): print(t)"
    got = subprocess.run([PYTHON, "-c", code, *SUITE], capture_output=True, text=True)
    return " ".join(got.stdout.split())


SQL = ("create table t(a integer primary key, b text); insert into t select value, hex(value * 7919) || value from "
       "generate_series(1, {rows}); create index i on t(b); select count(*), sum(length(b)), min(b), max(b) from t; "
       "delete from t where a % 3 = 0; vacuum; select count(*), sum(a) from t;")
REDIS = """redis-server --port {port} --bind 127.0.0.1 --dir {folder} --save '' --daemonize no > {folder}/log & server=$!
for i in $(seq 100); do redis-cli -p {port} ping > {folder}/ping 2>&1 && grep -q PONG {folder}/ping && break; sleep 0.1; done
redis-benchmark -p {port} -q -n 50000 -r 20000 -t set,lpush,hset,zadd -d 300 > {folder}/bench
redis-cli -p {port} bgsave > {folder}/save; redis-benchmark -p {port} -q -n 50000 -r 20000 -t set -d 500 > {folder}/bench
for i in $(seq 300); do redis-cli -p {port} info persistence | grep -q rdb_bgsave_in_progress:0 && break; sleep 0.1; done
redis-cli -p {port} info persistence | grep -o rdb_last_bgsave_status:ok; redis-cli -p {port} shutdown nosave; wait $server"""
PGBENCH = """B={postgres}; run() {{ if [ $(id -u) = 0 ]; then chown -R postgres {folder}; setpriv --reuid postgres --clear-groups "$@"; \
else "$@"; fi; }}
chmod 755 {folder}/.. {folder}; run $B/initdb -D {folder}/db -A trust > {folder}/log 2>&1
run $B/pg_ctl -D {folder}/db -o "-p {port} -k {folder} -c listen_addresses=" -l {folder}/log2 -w start > /dev/null
run $B/pgbench -h {folder} -p {port} -U $(run id -un) -i -s 2 postgres > /dev/null 2>&1
run $B/pgbench -h {folder} -p {port} -U $(run id -un) -c 4 -j 2 -t 200 postgres 2>&1 | grep -o "actually processed: 800/800"
run $B/pg_ctl -D {folder}/db -m fast stop > /dev/null"""
NODE = "const a={};for(let i=0;i<3e5;i++)a['k'+i]={v:'x'.repeat(i%50)};const b=Buffer.alloc(5e7,1);" \
       "console.log(Object.keys(a).length,b.reduce((x,y)=>x+y,0),JSON.stringify(a).length)"
PERL = "my %h; $h{$_ % 70000} .= 'x' x ($_ % 90) for 1..{n}; my $s; $s += length for values %h; " \
       "my $b = join q(,), sort keys %h; print scalar(keys %h), ' ', $s, ' ', length $b"

# name, the programs it needs, the command for sh; and whether it judges itself: then it runs with zr's malloc alone, and its
# exit code counts.
FAST = [
    ("perl", ["perl"], f"perl -e '{PERL.replace('{n}', '150000')}'", False),
    ("python", [PYTHON], PYTHON + " -c 'import json; d={i: [str(i)]*(i%20) for i in range(30000)}; "
     "print(len(json.dumps(d)), sum(len(bytes(i*50)) for i in range(3000)))'", False),
    ("gcc", ["gcc"], "gcc -O2 -I. -std=gnu11 -c alloc/core/space.c -o {folder}/a.o && sha256sum < {folder}/a.o", False),
    ("git", ["git"], "git log --stat -300 -- alloc | sha256sum", False),
    ("sqlite3", ["sqlite3"], "sqlite3 {folder}/db \"" + SQL.format(rows=20000) + "\"", False),
    ("sort", ["sort"], "seq 100000 | sort -R --random-source=/usr/bin/env | sort -n --parallel=2 -S 20M | sha256sum", False),
]
SLOW = [
    ("CPython's suite, on malloc alone", [PYTHON], f"cd {{folder}} && PYTHONMALLOC=malloc {PYTHON} -m test -j2 {{suite}}", True),
    ("CPython's suite", [PYTHON], f"cd {{folder}} && {PYTHON} -m test -j2 {{suite}}", True),
    ("a build of this project", ["gcc", "make"], "make -s BUILD={folder}/build CI=1 -j2 {folder}/build/lib/libzr.a > {folder}/log 2>&1; "
     "for o in $(find {folder}/build/obj -name '*.o' | LC_ALL=C sort); do objcopy -g $o {folder}/o; sha256sum < {folder}/o; done", False),
    ("git on a large history", ["git"], "git clone -q --bare --no-hardlinks --single-branch . {folder}/g && cd {folder}/g && git gc -q --aggressive && "
     "git fsck --full 2>&1 | grep -v dangling; git rev-list --all --objects | wc -l", False),
    ("sqlite3, a million rows", ["sqlite3"], "sqlite3 {folder}/db \"" + SQL.format(rows=1000000) + "\"", False),
    ("redis-server, with a BGSAVE", ["redis-server", "redis-benchmark"], REDIS, False),
    ("perl, larger", ["perl"], f"perl -e '{PERL.replace('{n}', '4000000')}'", False),
    ("openssl speed", ["openssl"], "openssl speed -seconds 1 -multi 2 sha256 rsa2048 2>/dev/null | wc -l", False),
    ("mpirun with four ranks", ["mpirun"], "mpirun --oversubscribe $([ $(id -u) = 0 ] && echo --allow-run-as-root) -x LD_PRELOAD -n 4 "
     "{build}/bin/zr-train --data README.md --comm mpi --steps 3 --layers 2 --hidden 64 --heads 4 --seq 32 --batch 1 --json {folder}/j > /dev/null 2>&1; "
     "grep -o '\"loss_hex\": [^]]*' {folder}/j", False),
    ("PostgreSQL under pgbench", [POSTGRES + "/initdb", POSTGRES + "/pgbench"], PGBENCH, False),
    ("node", ["node"], f"node -e \"{NODE}\"", False),
    ("LibreOffice converts a document", ["soffice"], "cp README.md {folder}/d.txt && soffice -env:UserInstallation=file://{folder}/u --headless "
     "--convert-to docx --outdir {folder} {folder}/d.txt > /dev/null 2>&1; unzip -p {folder}/d.docx word/document.xml | wc -c", False),
]
# What takes a gigabyte of packages: make soak.
TORCH = """import torch, torch.nn as nn
torch.manual_seed(1); torch.set_num_threads(1)
layer = lambda: nn.TransformerEncoderLayer(96, 4, 384, dropout=0, batch_first=True)
model = nn.ModuleList([nn.Embedding(256, 96), layer(), layer(), nn.Linear(96, 256)])
step = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(40):
    length = 32 + i * 37 % 200
    x = torch.randint(256, (8, length + 1))
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    h = model[0](x[:, :-1])
    for block in model[1:3]: h = block(h, src_mask=mask)
    loss = nn.functional.cross_entropy(model[3](h).flatten(0, 1), x[:, 1:].flatten())
    step.zero_grad(); loss.backward(); step.step()
    print(loss.item().hex())
"""
CHROMIUM = "chromium --headless --no-sandbox --disable-gpu --user-data-dir={folder}/u --dump-dom {folder}/p.html 2> {folder}/log"
SOAK = [
    ("PyTorch on the CPU trains a GPT", [PYTHON], f"{PYTHON} - <<'END'\n{TORCH}END", False),
    ("chromium starts", ["chromium"], "echo '<p id=a></p><script>let s=0;for(let i=0;i<1e6;i++)s+=[i].length;a.innerText=s</script>' "
     "> {folder}/p.html && " + CHROMIUM, False),
    ("LibreOffice writes a PDF", ["soffice"], "cp README.md {folder}/d.txt && soffice -env:UserInstallation=file://{folder}/u --headless "
     "--convert-to pdf --outdir {folder} {folder}/d.txt > /dev/null 2>&1; head -c 8 {folder}/d.pdf", False),
]


def missing(needs):
    return " and ".join(need for need in needs if not shutil.which(need))


def run(row, number, wrapper):
    folder = os.path.join(FOLDER, f"program-{number}-{'zr' if wrapper else 'own'}")
    os.makedirs(folder)
    text = row[2].replace("{{", "{").replace("}}", "}") if "{{" in row[2] else row[2]
    for word, value in {"folder": folder, "build": os.path.abspath(BUILD), "postgres": POSTGRES,
                        "port": str(20000 + os.getpid() % 10000 + 2 * number + bool(wrapper)),
                        "suite": suite() if "{suite}" in text else ""}.items():
        text = text.replace("{" + word + "}", value)
    got = subprocess.run([*wrapper, "sh", "-c", text], capture_output=True, text=True, errors="replace", timeout=LONG_HANG,
                         stdin=subprocess.DEVNULL)
    shutil.rmtree(folder, True)
    return got.returncode, got.stdout.replace(folder, ""), got.stderr


def run_both(number, row):
    """(why it was skipped, without, with, right where it judges itself, seconds)"""
    if missing(row[1]):
        return f"{missing(row[1])} is not installed", None, None, False, 0
    if "{suite}" in row[2] and not suite():
        return "the suite is not installed (libpython3.N-testsuite)", None, None, False, 0
    start = time.monotonic()
    own = None if row[3] else run(row, number, [])
    with_zr = run(row, number, [ZR, "run", "--malloc", "--"])
    right, reason = judge_again(number, row, with_zr) if row[3] else (False, "")
    return reason, own, with_zr, right, time.monotonic() - start


def failing(output):
    """The tests that CPython's suite names as failed."""
    found = re.search(r"^\d+ tests? failed:\n((?:    .*\n)+)", output, re.M)
    return found.group(1).split() if found else []


def judge_again(number, row, got):
    """The suite has limits of time of its own, which a busy host passes. Its failed tests run again by themselves, with zr's
    malloc and, where they fail once more, without: (right, why that cannot be told)."""
    tests = failing(got[1])
    if got[0] == 0 or not tests:
        return got[0] == 0, ""
    again = (row[0], row[1], row[2].replace("-j2", "").replace("{suite}", " ".join(tests)), True)
    if run(again, 100 + number, [ZR, "run", "--malloc", "--"])[0] == 0:
        return True, ""
    own = run(again, 200 + number, [])
    return False, "" if own[0] == 0 else f"{' '.join(tests)} fail without zr's malloc too: {own[1][-900:]!r}"


def check(rows, at_once=1):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for row, (reason, own, with_zr, right, seconds) in zip(rows, pool.map(run_both, range(len(rows)), rows)):
            if reason:
                skip(f"{row[0]}: {reason}")
                continue
            if row[3]:
                good = ok(right, f"{row[0]}: passes")
            else:
                good = ok(with_zr[:2] == own[:2] and own[1].strip() != "", f"{row[0]}: the same results as without")
            note(f"{seconds:.0f} s")
            if not good:
                note(f"without: {own and (own[0], own[1][-600:], own[2][-600:])}")
                note(f"with:    {with_zr[0]} {with_zr[1][-1500:]!r} {with_zr[2][-1500:]!r}")
