"""Where and with what was measured."""

import datetime
import json
import os
import re
import subprocess
from pathlib import Path

# What says its version by which command.
SERVERS = {
    "etcd": ["etcd", "--version"],
    "redis": ["redis-server", "--version"],
    "consul": ["consul", "version"],
    "mysql": ["/usr/sbin/mariadbd", "--version"],
}
CRATES = ["etcd-client", "redis", "reqwest", "zookeeper-client", "tokio-postgres", "mysql_async", "tokio"]
PACKAGES = ["tooz", "kazoo", "redis", "etcd3gw", "PyMySQL", "psycopg2-binary", "python-consul2"]


def said(*command):
    """What a command prints first; empty, if it cannot be had."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip()


def first(pattern, text):
    found = re.search(pattern, text)
    return found[1] if found else ""


def run(root, command, cpus):
    """What is to be known of this run."""
    cpu = first(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or os.uname().machine
    memory = int(first(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())) / 1024 / 1024
    system = first(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text())
    changed = " with changes" if said("git", "-C", root, "status", "--porcelain", "--untracked-files=no") else ""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": said("git", "-C", root, "rev-parse", "--short=12", "HEAD") + changed,
        "command": command,
        "machine": f"{os.cpu_count()} × {cpu}, of which {len(cpus)} were used; {memory:.1f} GiB",
        "system": f"{system}, Linux {os.uname().release}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def versions(root, venvs):
    found = {"rustc": first(r"rustc (\S+)", said("rustc", "--version"))}
    for name, command in SERVERS.items():
        found[name] = first(r"(\d+\.\d+\.\d+)", said(*command))
    jar = next(Path("/usr/share/java").glob("zookeeper-[0-9]*.jar"), "")
    found["zookeeper"] = first(r"zookeeper-([\d.]+)\.jar", str(jar))
    newest = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)
    found["postgres"] = first(r"(\d+\.\d+)", said(newest, "--version")) if newest else ""
    lock = (Path(root) / "Cargo.lock").read_text()
    for name in CRATES:
        found[f"{name} (crate)"] = first(rf'name = "{name}"\nversion = "(.*)"', lock)
    for venv in sorted(venvs.glob("*/bin/python")):
        packages = json.loads(said(venv, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check") or "[]")
        of_venv = {package["name"].lower(): package["version"] for package in packages}
        for name in PACKAGES:
            suffix = " (Python, for Consul)" if venv.parts[-3] == "consul" else " (Python)"
            found[name + suffix] = of_venv.get(name.lower(), "")
    return {name: version for name, version in found.items() if version}
