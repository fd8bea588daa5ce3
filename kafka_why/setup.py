"""Build the distribution in a temporary folder.

setuptools would build in `build` beside this file, and install again what an earlier build left there.
"""

from tempfile import TemporaryDirectory

from setuptools import setup

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        setup(
            script_name="setup.py",  # so that this file is not taken for a module of the package
            options={"build": {"build_base": folder}},
        )
