"""One run of the program under the limits of a campaign, and what is wrong with how it ended."""

import dataclasses
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time

SECONDS, RESIDENT = 20.0, 2 * 2**30
STOP_RESIDENT = 6 * 2**30  # ended before it harms the machine

# Words of libraries and of the runtime: the program is to say it in its own.
FOREIGN = re.compile(
    r"terminate called|what\(\):|Traceback|Exception raised from|INTERNAL ASSERT|enforce fail|c10::|at::|torch::|std::"
    r"|filesystem error|json\.exception|basic_string|vector::|stoi|stol|bad_alloc|_M_|DefaultCPUAllocator|Sanitizer"
    r"|Expected all tensors|size mismatch|invalid argument$",
    re.IGNORECASE,
)
# A refusal that names neither a file nor a field.
NAMELESS = re.compile(r"^mhla: (JSON value|StreamingState)", re.MULTILINE)
# Where the run itself failed (exit code 1): a loss that is NaN, a recording that does not agree.
FAILED_RUN = re.compile(r"train: step \d+: .*(NaN|infinite)|tensors checked, \d+ failed|nothing was checked", re.IGNORECASE)


@dataclasses.dataclass
class Ended:
    code: int  # below 0: by this signal
    seconds: float
    resident: int  # bytes at the most
    out: str
    err: str
    stopped: str = ""  # by us, and why

    @property
    def complaint(self):
        """The last line of stderr; of a check that failed it stands at the end of its table."""
        lines = self.err.strip().splitlines() or (self.out.strip().splitlines() if self.code == 1 else [])
        return lines[-1] if lines else ""


def environment(home):
    """One thread for each process: several run at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HOME": str(home), "LC_ALL": "C.UTF-8"}


def start(mhla, words, folder, stdin=subprocess.DEVNULL):
    """Starts the program in `folder`/cwd; its output goes to `folder`/out and err."""
    folder = pathlib.Path(folder)
    cwd = folder / "cwd"
    cwd.mkdir(parents=True, exist_ok=True)
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        return subprocess.Popen(
            [mhla, *words], stdin=stdin, stdout=out, stderr=err, cwd=cwd, env=environment(cwd), start_new_session=True
        )


def resident_now(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def text_of(path, most=200_000):
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "backslashreplace")


def finish(process, folder, seconds, kill_after=None):
    """Waits for the end, or ends the program: after `seconds`, at too much memory, or with kill -9 after `kill_after`."""
    began, stopped, most = time.monotonic(), "", 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        now = time.monotonic() - began
        if pid:
            break
        most = max(most, resident_now(process.pid))
        if kill_after is not None and now >= kill_after:
            stopped = stopped or "killed"
        elif now > seconds:
            stopped = stopped or f"still running after {seconds:.0f} s"
        elif most > STOP_RESIDENT:
            stopped = stopped or f"{most / 2**30:.1f} GiB resident"
        if stopped:
            os.kill(process.pid, signal.SIGKILL)  # not process.kill(), which may take its end from wait4()
        wait = 0.01 if kill_after is None else min(0.01, max(0.0005, kill_after - now))
        time.sleep(wait)
    process.returncode = os.waitstatus_to_exitcode(status)
    folder = pathlib.Path(folder)
    return Ended(process.returncode, now, max(usage.ru_maxrss * 1024, most), text_of(folder / "out"), text_of(folder / "err"),
                 stopped)  # fmt: skip


def run(mhla, words, folder, seconds=SECONDS):
    return finish(start(mhla, words, folder), folder, seconds)


def shell_line(mhla, words):
    """As somebody would type it; bytes that are no text become $'...'."""
    quote = lambda word: shlex.quote(word) if isinstance(word, str) else "$'" + "".join(f"\\x{b:02x}" for b in word) + "'"
    return " ".join([shlex.quote(str(mhla)), *map(quote, words)])


def left_over(folder):
    """Files that only a writer that died leaves behind."""
    return [str(path) for path in pathlib.Path(folder).rglob("*") if re.search(r"\.part\d+-\d+$|^\.(part|old)-", path.name)]


def wrong(ended):
    """What is wrong with how a run ended; empty: nothing."""
    if ended.stopped:
        return ended.stopped
    if ended.code < 0:
        return f"ended by {signal.Signals(-ended.code).name}"
    if ended.code not in (0, 1, 2):
        return f"exit code {ended.code}"
    if found := FOREIGN.search(ended.err):
        return f"words of a library: '{found.group()}'"
    if ended.resident > RESIDENT:
        return f"{ended.resident / 2**30:.1f} GiB resident"
    if ended.seconds > SECONDS:
        return f"{ended.seconds:.0f} s"
    if ended.code == 0:
        return ""
    if ended.code == 1:
        return "" if FAILED_RUN.search(ended.complaint) else "exit code 1, and no run that failed"
    lines = [line for line in ended.err.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("mhla: ")]
    if not said:
        return "no line on stderr" if not lines else "stderr does not begin with 'mhla: '"
    if len(lines) != len(said):
        return f"{len(lines)} lines on stderr, {len(said)} of them 'mhla: '"
    if len(lines) > 1 and len(set(lines)) != len(lines):
        return "the same line twice"
    if NAMELESS.search(ended.err):
        return "the line does not say where"
    return ""
