"""`python tools …` in a bare checkout, and `python -m inferops …`: registers this directory as the package inferops."""

import importlib.util
import sys
from pathlib import Path

if not __package__:
    here = Path(__file__).resolve().parent
    sys.path.pop(0)  # this directory: its core, ops and load are nobody's top-level modules
    spec = importlib.util.spec_from_file_location(
        "inferops", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["inferops"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["inferops"])

sys.argv[0] = "inferops"
try:
    from inferops.cli import main
except ImportError as missing:
    print(f"inferops: cannot start: {missing}  -> run make setup, and use .venv/bin/inferops", file=sys.stderr)
    sys.exit(3)
sys.exit(main())
