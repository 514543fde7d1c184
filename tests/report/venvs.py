"""The virtual environments of the peers in Python."""

import os
import subprocess
import sys

# Tooz 9 has no driver for Consul any more. The drivers of the other stores are loaded when a URL asks for them.
PACKAGES = {
    "peers": ["tooz==9.1.0", "kazoo==2.11.0", "redis==8.1.0", "etcd3gw==2.7.0", "PyMySQL==1.2.4", "psycopg2-binary==2.9.13"],
    "consul": ["tooz==7.0.0", "python-consul2==0.1.5"],
}


def make(directory):
    """Makes those that are not there; what cannot be had is said, and left out."""
    for name, packages in PACKAGES.items():
        venv, complete = directory / name, directory / name / "complete"
        if complete.exists() and complete.read_text() == "\n".join(packages):
            continue
        print(f"installing {' '.join(packages)}", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", venv]).returncode != 0:
            print(f"no virtual environment {name}: its peers are not measured")
            continue
        if all([install(venv, [package]) for package in packages]):
            complete.write_text("\n".join(packages))


def install(venv, packages):
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"]
    done = subprocess.run([*pip, *packages], env={**os.environ, "PIP_NO_INPUT": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"without {' '.join(packages)}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    return done.returncode == 0
