"""programs.py: programs that people have, as rows of a table, each run with zr's malloc and without: the results must be
the same. FAST and WATCHED are sixty and more, under zr run --stats --trace: tests/system/preload.t runs the former,
tests/long/soak_programs.t the latter. SLOW, with zr's malloc alone, are tests/long/long_preload.t's."""
import concurrent.futures
import glob
import os
import re
import shutil
import signal
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
TMUX = """export TMUX_TMPDIR={folder}; tmux -f /dev/null new-session -d -x 80 -y 24 "seq 20000 | tail -3; sleep 600"
for i in $(seq 300); do tmux capture-pane -p | grep -q 20000 && break; sleep 0.1; done; tmux capture-pane -p | grep .; tmux kill-server"""
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
    ("sort", ["sort"], "seq 40000 | sort -R --random-source=/usr/bin/env | sort -n --parallel=2 -S 20M | sha256sum", False),
    ("awk", ["awk"], "awk 'BEGIN {for (i = 0; i < 100000; i++) a[i % 5000] = a[i % 5000] i; for (k in a) n += length(a[k]); print n}'", False),
    ("tar and gzip", ["tar", "gzip"], "tar -c --exclude=__pycache__ --sort=name --mtime=@0 --owner=0 --group=0 --mode=644 alloc defrag | gzip -n | gunzip | sha256sum", False),
    ("bash", ["bash"], "bash -c 'declare -A a; for i in {1..5000}; do a[$((i % 997))]+=$i; done; echo ${#a[@]} ${a[5]}'", False),
    ("make", ["make"], "for i in $(seq 200); do echo \"t$i: ; @echo $i\"; done > {folder}/m; echo \"all: $(seq -s ' ' -f t%g 200)\" >> {folder}/m; "
     "make -j2 -f {folder}/m all | sort -n | sha256sum", False),
    ("objdump", ["objdump"], "objdump -d {build}/obj/alloc/core/space.o | sha256sum", False),
    ("sed, grep and diff", ["sed", "grep", "diff"], "cat alloc/*/*.c | sed 's/zr_/yy_/g' | grep -c yy_; diff -r -x __pycache__ alloc defrag | sha256sum", False),
    ("jq", ["jq"], "seq 20000 | jq -cs 'map({k: ., v: (. * 2 | tostring)}) | group_by(.k % 7) | map(length)'", False),
    ("rsync", ["rsync"], "rsync -a --exclude=__pycache__ alloc {folder}/a && diff -r -x __pycache__ alloc {folder}/a/alloc && find {folder}/a -type f | wc -l", False),
    ("tmux", ["tmux"], TMUX, False),
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

# Servers: each is asked until it answers, answers, and is ended by the process number that it was started with.
MEMCACHED = """memcached -u $(id -un) -l 127.0.0.1 -p {port} -t 4 & server=$!
{python} - <<'END'
import socket, time
for _ in range(300):
    try: s = socket.create_connection(("127.0.0.1", {port})); break
    except OSError: time.sleep(0.1)
f = s.makefile("rwb")
for i in range(3000):
    f.write(b"set k%d 0 0 %d\\r\\n%s\\r\\n" % (i, i, b"x" * i))
    f.flush(); assert f.readline() == b"STORED\\r\\n"
f.write(b"get k7 k2999\\r\\n"); f.flush()
print(sum(len(f.readline()) for _ in range(5)))
END
kill $server; wait $server; echo $?"""
WEB = """mkdir {folder}/w; seq 100000 > {folder}/w/a; {server} & server=$!
for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/a -o {folder}/got && break; sleep 0.1; done
for i in $(seq 20); do curl -s http://127.0.0.1:{port}/a http://127.0.0.1:{port}/none | sed 's/nginx.*//' | wc -c; done | sort | uniq -c | wc -l
kill $server; wait $server; echo $?; sha256sum {folder}/got && cmp {folder}/got {folder}/w/a"""
NGINX = """[ $(id -u) = 0 ] && echo 'user root;' > {folder}/conf; echo 'daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/log; events {} http { access_log off; client_body_temp_path {folder}/1;
proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5; gzip on;
server { listen 127.0.0.1:{port}; root {folder}/w; } }' >> {folder}/conf
""" + WEB.replace("{server}", "nginx -c {folder}/conf")
HAPROXY = """{python} -m http.server -b 127.0.0.1 -d {folder} {port2} > {folder}/log 2>&1 & backend=$!
echo 'defaults
 mode http
 timeout connect 9s
 timeout client 9s
 timeout server 9s
frontend f
 bind 127.0.0.1:{port}
 default_backend b
backend b
 server s 127.0.0.1:{port2}' > {folder}/conf; seq 100000 > {folder}/a
haproxy -db -f {folder}/conf 2> {folder}/log2 & server=$!
for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/a -o {folder}/got && break; sleep 0.1; done
kill $server $backend; wait $server; wait $backend; cmp {folder}/got {folder}/a && echo ended"""
MARIADB = """mariadb-install-db --no-defaults --datadir={folder}/db --auth-root-authentication-method=normal --user=$(id -un) > {folder}/log 2>&1
mariadbd --no-defaults --datadir={folder}/db --socket={folder}/s --skip-networking --user=$(id -un) > {folder}/log2 2>&1 & server=$!
q() { mariadb --no-defaults -u root -S {folder}/s -N -e "$1"; }
for i in $(seq 600); do q 'select 1' > {folder}/ping 2>&1 && break; sleep 0.1; done
q "create database d; create table d.t(a int primary key, b text); insert into d.t select seq, repeat(seq, 20) from seq_1_to_20000;
select count(*), sum(length(b)), md5(group_concat(b order by a)) from d.t; delete from d.t where a % 3 = 0; select sum(a) from d.t"
kill $server; wait $server; echo $?"""
VIM = "seq 20000 > {folder}/t; vim -Nu NONE -n -es -c '%s/7/seven/g | %sort! n | g/^1/d' -c 'wq' {folder}/t < /dev/null; sha256sum < {folder}/t"
SCREEN = """export SCREENDIR={folder}/d; mkdir -m 700 $SCREENDIR; screen -dmS z sh -c 'seq 20000 | tail -2; sleep 600'
for i in $(seq 300); do screen -S z -X hardcopy {folder}/h > {folder}/o; grep -q 20000 {folder}/h 2> {folder}/e && break; sleep 0.1; done; grep . {folder}/h; screen -S z -X quit"""
C = "int main(void) { return 0; }"
RUST = "fn main() { let mut m = std::collections::BTreeMap::new(); for i in 0..200000u64 { m.insert(i * 7919 % 65537, i.to_string()); } " \
       "println!(\"{} {}\", m.len(), m.values().map(|s| s.len()).sum::<usize>()); }"
JAVA = "import java.util.*; class A { public static void main(String[] a) { Map<Integer,String> m = new TreeMap<>(); " \
       "for (int i = 0; i < 300000; i++) m.put(i * 7919 % 65537, \"v\" + i); System.out.println(m.size() + \" \" + m.hashCode()); } }"
# Under zr run --stats --trace: make soak.
WATCHED = [
    ("redis-server", ["redis-server", "redis-benchmark"], REDIS, False),
    ("memcached", ["memcached"], MEMCACHED, False),
    ("nginx", ["nginx", "curl"], NGINX, False),
    ("PostgreSQL", [POSTGRES + "/initdb", POSTGRES + "/pgbench"], PGBENCH, False),
    ("MariaDB", ["mariadbd", "mariadb-install-db"], MARIADB, False),
    ("HAProxy", ["haproxy", "curl"], HAPROXY, False),
    ("node", ["node"], f"node -e \"{NODE}\"", False),
    ("ruby", ["ruby"], "ruby -e 'h = Hash.new(0); 300000.times { |i| h[(i * 7919 % 65537).to_s] += i }; GC.start; puts h.size, h.values.sum, h.keys.join.size'", False),
    ("php", ["php"], "php -r '$a = []; for ($i = 0; $i < 300000; $i++) $a[\"k\" . $i % 50000][] = $i; ksort($a); echo count($a), \" \", md5(json_encode($a));'", False),
    ("clang", ["clang"], "clang -O2 -I. -std=gnu11 -c alloc/core/space.c -o {folder}/a.o && sha256sum < {folder}/a.o", False),
    ("CPython's suite, in part", [PYTHON], "cd {folder} && {python} -m test test_list test_dict test_json test_threading test_gc test_zlib 2>&1 | grep -o 'SUCCESS\\|FAILURE' | tail -1", False),
    ("NumPy", ["import numpy"], PYTHON + " -c 'import numpy as n; a=n.arange(4e6).reshape(2000,2000)%97; b=a@a.T; print(b.sum(), n.sort(b.ravel())[::99999].tolist()[:5], n.fft.rfft(a[0]).real.sum().round(3))'", False),
    ("ffmpeg", ["ffmpeg"], "ffmpeg -v error -nostdin -f lavfi -i testsrc=d=2:s=320x240 -f lavfi -i sine=d=2 -c:v mpeg4 -c:a aac -threads 2 -fflags +bitexact -flags:v +bitexact -flags:a +bitexact "
     "-y {folder}/o.mkv && ffmpeg -v error -nostdin -i {folder}/o.mkv -map 0:v -f md5 -", False),
    ("ImageMagick", ["convert", "identify"], "convert -size 600x400 gradient:red-blue -blur 0x4 -rotate 30 -resize 300x {folder}/a.png && identify -format '%w %h %#\\n' {folder}/a.png", False),
    ("vim", ["vim"], VIM, False),
    ("screen", ["screen"], SCREEN, False),
    ("lua", ["lua5.4"], "lua5.4 -e 'local t = {} for i = 1, 300000 do t[i % 5000] = (t[i % 5000] or \"\") .. i end local n = 0 for _, v in pairs(t) do n = n + #v end print(n)'", False),
    ("gawk", ["gawk"], "gawk 'BEGIN {for (i = 0; i < 300000; i++) a[i * 7919 % 65537] = i \"x\"; n = asort(a); print n, a[1], a[n]}'", False),
    ("bc", ["bc"], "echo 'scale = 600; 4 * a(1)' | bc -l | sha256sum", False),
    ("tcl", ["tclsh"], "echo 'for {set i 0} {$i < 200000} {incr i} {dict append d [expr {$i % 3000}] $i}; puts [string length [dict values $d]]' | tclsh", False),
    ("guile", ["guile"], "GUILE_AUTO_COMPILE=0 guile -c '(let loop ((i 0) (l (list))) (if (< i 300000) (loop (+ i 1) (cons (number->string i) l)) (begin (display (length l)) (display (string-length (apply string-append l))))))'", False),
    ("ghostscript", ["gs"], "echo '%!\n0 1 99 {/i exch def /Helvetica 20 selectfont 72 i 7 mul moveto i 20 string cvs show} for showpage' > {folder}/a.ps; "
     "gs -q -dNOPAUSE -dBATCH -sDEVICE=pnggray -r72 -o {folder}/a.png {folder}/a.ps && sha256sum < {folder}/a.png", False),
    ("graphviz", ["dot"], "(echo 'digraph g {'; for i in $(seq 150); do echo \"$i -> $((i * 7 % 40)); $i -> $((i / 2))\"; done; echo '}') | dot -Tplain | sha256sum", False),
    ("gnuplot", ["gnuplot"], "gnuplot -e 'set term dumb 79 24; plot sin(x), x**2/50'", False),
    ("octave", ["octave-cli"], "octave-cli --norc --eval 'a = reshape(mod(1:250000, 97), 500, 500); disp(sum(sum(a * a))); disp(rank(magic(100))); s = num2cell(1:20000); disp(numel(s))'", False),
    ("R", ["Rscript"], "Rscript --vanilla -e 'set.seed(1); x <- matrix(rnorm(250000), 500); print(sum(solve(crossprod(x) + diag(500)))); print(length(unique(paste0(\"a\", 1:50000 %% 7000))))'", False),
    ("ocaml", ["ocaml"], "echo 'let h = Hashtbl.create 9;; for i = 1 to 300000 do Hashtbl.replace h (i * 7919 mod 65537) (string_of_int i) done;; print_int (Hashtbl.length h);;' > {folder}/a.ml; ocaml {folder}/a.ml", False),
    ("java", ["javac", "java"], f"echo '{JAVA}' > {{folder}}/A.java; cd {{folder}} && javac A.java && java A", False),
    ("go", ["go"], "cd {folder} && export GOCACHE={folder}/c GOFLAGS=-mod=mod GO111MODULE=off; echo 'package main\nfunc main() { m := map[int]string{}; for i := 0; i < 300000; i++ { m[i*7919%65537] = \"v\" }; println(len(m)) }' > a.go; go run a.go 2>&1", False),
    ("rust", ["rustc"], f"echo '{RUST}' > {{folder}}/a.rs; cd {{folder}} && rustc -O a.rs && ./a", False),
    ("openssl", ["openssl"], "seq 300000 | openssl enc -aes-256-cbc -pbkdf2 -S 0011223344556677 -pass pass:x | openssl dgst -sha256; "
     "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=z -keyout {folder}/k -out {folder}/c 2> {folder}/log; openssl verify -CAfile {folder}/c {folder}/c | grep -o OK", False),
    ("gpg", ["gpg"], "export GNUPGHOME={folder}/g; mkdir -m 700 $GNUPGHOME; seq 100000 > {folder}/t; gpg -q --batch --pinentry-mode loopback --passphrase x -c -o {folder}/e {folder}/t && "
     "gpg -q --batch --pinentry-mode loopback --passphrase x -d {folder}/e 2> {folder}/log | sha256sum; gpgconf --kill all", False),
    ("wget", ["wget"], WEB.replace("{server}", "{python} -m http.server -b 127.0.0.1 -d {folder}/w {port} > {folder}/log 2>&1").replace("curl -sf http://127.0.0.1:{port}/a -o", "wget -q http://127.0.0.1:{port}/a -O")
     .replace("curl -s http://127.0.0.1:{port}/a http://127.0.0.1:{port}/none | sed 's/nginx.*//'", "wget -q http://127.0.0.1:{port}/a -O -").replace("wait $server; echo $?", "wait $server; echo ended"), False),
    ("zstd", ["zstd"], "cat alloc/*/*.c zero/*/*.c | zstd -19 -T2 -c | zstd -dc | sha256sum", False),
    ("xz", ["xz"], "cat alloc/*/*.c zero/*/*.c | xz -6 -T2 -c | xz -dc | sha256sum", False),
    ("bzip2", ["bzip2"], "cat alloc/*/*.c zero/*/*.c | bzip2 -c | bzip2 -dc | sha256sum", False),
    ("7-zip", ["7zr"], "7zr a -mmt2 {folder}/a.7z alloc > {folder}/log && cd {folder} && 7zr x a.7z > log && find alloc -type f | LC_ALL=C sort | xargs cat | sha256sum", False),
    ("zip and unzip", ["zip", "unzip"], "zip -qrX {folder}/a.zip alloc defrag && unzip -l {folder}/a.zip | tail -1 && unzip -p {folder}/a.zip 'alloc/core/*' | sha256sum", False),
    ("file", ["file"], "find alloc defrag tests -type f | LC_ALL=C sort | head -400 | xargs file | sha256sum", False),
    ("cmake and ninja", ["cmake", "ninja", "gcc"], f"echo 'cmake_minimum_required(VERSION 3.5)\nproject(z C)\nadd_executable(z a.c)' > {{folder}}/CMakeLists.txt; echo '{C}' > {{folder}}/a.c; "
     "cmake -G Ninja -S {folder} -B {folder}/b > {folder}/log && ninja -C {folder}/b | tail -1 && {folder}/b/z; echo $?", False),
    ("sox", ["sox"], "sox -R -n -r 44100 -b 16 {folder}/a.wav synth 3 sine 300-3300 echo 0.8 0.9 60 0.4 && sox -R {folder}/a.wav -t raw - speed 1.3 | sha256sum", False),
    ("pandoc", ["pandoc"], "pandoc -f markdown -t html README.md | sha256sum", False),
    ("xsltproc and xmllint", ["xsltproc", "xmllint"], "(echo '<r>'; for i in $(seq 20000); do echo \"<a n='$i'>x$i</a>\"; done; echo '</r>') > {folder}/a.xml; xmllint --xpath 'count(//a[@n mod 7 = 0])' {folder}/a.xml; "
     "echo '<x:stylesheet version=\"1.0\" xmlns:x=\"http://www.w3.org/1999/XSL/Transform\"><x:template match=\"/\"><x:for-each select=\"//a\"><x:sort select=\".\"/><x:value-of select=\".\"/></x:for-each></x:template></x:stylesheet>' > {folder}/s; "
     "xsltproc {folder}/s {folder}/a.xml | sha256sum", False),
    ("gdb", ["gdb", "gcc"], f"echo '{C}' | gcc -g -x c - -o {{folder}}/a && gdb -nx -batch -ex 'break main' -ex run -ex bt -ex 'info line main' {{folder}}/a 2>&1 | grep -o 'Breakpoint 1, main\\|^#0  main'", False),
    ("socat", ["socat"], "seq 200000 | socat -u - EXEC:sha256sum", False),
    ("sbcl", ["sbcl"], "sbcl --noinform --no-sysinit --no-userinit --eval '(let ((h (make-hash-table))) (dotimes (i 300000) (setf (gethash (mod (* i 7919) 65537) h) (format nil \"~a\" i))) (print (hash-table-count h)) (terpri) (exit))'", False),
    ("swi-prolog", ["swipl"], "swipl -q -g \"numlist(1, 200000, L), foldl([X, A, B]>>(B is A + X * X), L, 0, S), print(S), nl, length(L, N), print(N)\" -t halt", False),
    ("erlang", ["erl"], "HOME={folder} erl -noshell -eval 'P = self(), [spawn(fun() -> P ! lists:sum(lists:seq(1, N)) end) || N <- lists:seq(1, 2000)], io:format(\"~p~n\", [lists:sum([receive X -> X end || _ <- lists:seq(1, 2000)])]), halt().'", False),
    ("valac", ["valac"], "echo 'void main() { print(\"hi\"); }' > {folder}/a.vala; cd {folder} && valac -C a.vala && grep -c g_print a.c", False),
    ("busybox", ["busybox"], "seq 50000 | busybox sort -r | busybox awk '{s += $1} END {print s, NR}'", False),
    ("ssh-keygen", ["ssh-keygen"], "ssh-keygen -q -t ed25519 -N '' -f {folder}/k && echo hello > {folder}/t && ssh-keygen -Y sign -q -f {folder}/k -n file {folder}/t 2> {folder}/log && head -1 {folder}/t.sig", False),
    ("bison and flex", ["bison", "flex"], "echo '%%\ns: \"a\" | s \"b\";\n%%' > {folder}/a.y; echo '%%\n[a-z]+ ;\n%%' > {folder}/a.l; cd {folder} && bison -o p.c a.y && flex -o l.c a.l && cat p.c l.c | sha256sum", False),
    ("nasm", ["nasm"], "(echo 'section .text'; for i in $(seq 5000); do echo \"l$i: mov rax, $i\n jmp l$((i / 2 + 1))\"; done) > {folder}/a.s; cd {folder} && nasm -f elf64 -o a.o a.s && sha256sum < a.o", False),
    ("poppler", ["gs", "pdftotext"], "echo '%!\n0 1 99 {/i exch def /Helvetica 20 selectfont 72 i 7 mul moveto i 20 string cvs show} for showpage' > {folder}/a.ps; "
     "gs -q -dNOPAUSE -dBATCH -sDEVICE=pdfwrite -o {folder}/a.pdf {folder}/a.ps && pdftotext {folder}/a.pdf - | sha256sum", False),
]


def is_there(need):
    if need.startswith("import "):
        return subprocess.run([PYTHON, "-c", need], capture_output=True).returncode == 0
    return shutil.which(need)


def missing(needs):
    return " and ".join(need for need in needs if not is_there(need))


def run(row, number, how):
    """(exit code or "it hangs", standard output, standard error). How: None, or the options of zr run."""
    folder = os.path.join(FOLDER, f"program-{number}-{'own' if how is None else 'zr'}")
    os.makedirs(folder)
    text = row[2].replace("{{", "{").replace("}}", "}") if "{{" in row[2] else row[2]
    port = 20000 + os.getpid() % 10000 + 2 * number + (how is not None)
    for word, value in {"folder": folder, "build": os.path.abspath(BUILD), "postgres": POSTGRES, "python": PYTHON,
                        "port": str(port), "port2": str(port - 10000), "suite": suite() if "{suite}" in text else ""}.items():
        text = text.replace("{" + word + "}", value)
    wrapper = [] if how is None else [ZR, "run", *(option.replace("{trace}", folder + ".zrt") for option in how), "--"]
    process = subprocess.Popen([*wrapper, "sh", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=LONG_HANG)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a group of this run's own
        output, errors = process.communicate()
        code = "it hangs"
    shutil.rmtree(folder, True)
    for trace in glob.glob(folder + ".zrt*"):
        os.unlink(trace)
    return code, output.replace(folder, "").replace(str(port), "PORT"), errors


MALLOC = ["--malloc"]
WATCH = ["--stats", "--trace", "{trace}"]


def run_both(number, row, how):
    """(why it was skipped, without, with, right where it judges itself, seconds)"""
    if missing(row[1]):
        return f"{missing(row[1])} is not installed", None, None, False, 0
    if "{suite}" in row[2] and not suite():
        return "the suite is not installed (libpython3.N-testsuite)", None, None, False, 0
    start = time.monotonic()
    own = None if row[3] else run(row, number, None)
    with_zr = run(row, number, how)
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
    if run(again, 100 + number, MALLOC)[0] == 0:
        return True, ""
    own = run(again, 200 + number, None)
    return False, "" if own[0] == 0 else f"{' '.join(tests)} fail without zr's malloc too: {own[1][-900:]!r}"


def check(rows, at_once=1, how=None):
    """How: the options of zr run; None: --malloc. Under WATCH zr's own lines must come, too."""
    how = how or MALLOC
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for row, (reason, own, with_zr, right, seconds) in zip(rows, pool.map(run_both, range(len(rows)), rows, [how] * len(rows))):
            if reason:
                skip(f"{row[0]}: {reason}")
                continue
            said = how is not WATCH or "zr: verdict" in with_zr[2]
            if row[3]:
                good = ok(right and said, f"{row[0]}: passes")
            else:
                good = ok(with_zr[:2] == own[:2] and own[1].strip() != "" and said and (how is not WATCH or own[0] == 0), f"{row[0]}: the same results as without")
            note(f"{seconds:.1f} s")
            if not good:
                note(f"without: {own and (own[0], own[1][-600:], own[2][-600:])}")
                note(f"with:    {with_zr[0]} {with_zr[1][-1500:]!r} {with_zr[2][-1500:]!r}")
