"""browser.py: headless Chromium for test scripts, spoken to by its own protocol over two pipes: no driver, no port."""
import base64
import itertools
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pixels_of(png):
    """The pixels of a PNG of 8 bits without interlacing: lines of (red, green, blue)."""
    at, data, width, parts = 8, b"", 0, 3
    while at < len(png):
        size, = struct.unpack(">I", png[at:at + 4])
        kind, content = png[at + 4:at + 8], png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, parts = struct.unpack(">I", content[:4])[0], {2: 3, 6: 4}[content[9]]
        elif kind == b"IDAT":
            data += content
        at += 12 + size
    plain, lines, above = zlib.decompress(data), [], bytearray(width * parts)
    for begin in range(0, len(plain), width * parts + 1):
        how, line = plain[begin], bytearray(plain[begin + 1:begin + 1 + width * parts])
        for i in range(len(line)):
            left, up, corner = line[i - parts] if i >= parts else 0, above[i], above[i - parts] if i >= parts else 0
            near = min((left, up, corner), key=lambda value: abs(left + up - corner - value))  # Paeth's: the first of the nearest
            line[i] = (line[i] + (0, left, up, (left + up) // 2, near)[how]) & 255
        lines.append([tuple(line[i:i + 3]) for i in range(0, len(line), parts)])
        above = line
    return lines


class Browser:
    """A page, what it wrote to its console, and what it asked of a network."""

    def __init__(self, limit=120):
        self.limit, self.ids, self.left, self.errors, self.requests, self.loaded = limit, itertools.count(1), b"", [], [], False
        self.folder = tempfile.mkdtemp(prefix="zr-browser-")
        in_read, self.to = os.pipe()
        self.back, out_write = os.pipe()

        def pipes():  # 3 and 4 are where the protocol has them; copies first, since those may be taken
            a, b = os.dup(in_read), os.dup(out_write)
            high = [os.dup2(a, 100), os.dup2(b, 101)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-extensions",
             f"--user-data-dir={self.folder}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(in_read)
        os.close(out_write)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(20)
        except Exception:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def receive(self, until):
        while b"\0" not in self.left:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            got = os.read(self.back, 1 << 16)
            if not got:
                raise EOFError("the browser has gone")
            self.left += got
        line, self.left = self.left.split(b"\0", 1)
        message = json.loads(line)
        kind, content = message.get("method", ""), message.get("params", {})
        if kind == "Runtime.exceptionThrown" or (kind == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning")) or \
                (kind == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert")):
            self.errors.append(json.dumps(content)[:400])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"][:200])
        elif kind == "Page.loadEventFired":
            self.loaded = True
        return message

    def call(self, method, **params):
        number, until = next(self.ids), time.monotonic() + self.limit
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.receive(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def view(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        self.errors, self.requests, self.loaded = [], [], False
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while not self.loaded:
            self.receive(time.monotonic() + self.limit)

    def ask(self, expression):
        """The value of an expression, a promise's once it is there."""
        got = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(json.dumps(got["exceptionDetails"])[:600])
        return got["result"].get("value")

    def frame(self):
        """Waits until what was asked for is drawn."""
        self.ask("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def picture(self, path=None, **clip):
        if clip:
            clip = {"clip": {**clip, "scale": 1}}
        png = base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"])
        if path:
            with open(path, "wb") as file:
                file.write(png)
        return png

    def pixel(self, x, y):
        return self.pixels(x, y, 1, 1)[0][0]

    def pixels(self, x, y, width, height):
        """Lines of pixels of a part of the window."""
        return pixels_of(self.picture(x=int(x), y=int(y), width=width, height=height))

    def key(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, **text)
        self.frame()

    def touch(self, kind, *points):
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)])
