"""inferops: ops instruments for the person who runs a local LLM inference server under systemd."""

__version__ = "0.1.0"
