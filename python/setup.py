"""Builds libhstu.so and the program hstu with make and puts them into the wheel, with the configs that the program looks for.

They are built without optional libraries but CUDA (MINIMAL=cuda; CUDA=0 in the environment leaves that out) and for any CPU
of the architecture (ARCH=), so they need the C library alone, with CUDA that of C++, too, and cuBLASLt where a GPU is used.
The wheel is tagged for the glibc of the machine that builds it.  HSTU_LIBRARY=FILE takes a library that is there already, and
the program beside it; the wheel is then tagged for Linux only, or as HSTU_PLATFORM says (make wheel).  HSTU_CUDA=13: they have
CUDA 13, and the wheel depends on NVIDIA's packages (make wheel-cuda).  HSTU_ROOT is the repository, where this file is not
in it."""
import os
import platform
import re
import shutil
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.environ.get("HSTU_ROOT") or os.path.dirname(HERE)
GIVEN = os.environ.get("HSTU_LIBRARY")
CUDA = os.environ.get("HSTU_CUDA")


def version():
    with open(os.path.join(HERE, "hstu", "__init__.py")) as f:
        return re.search(r'^__version__ = "([^"]+)"', f.read(), re.M).group(1) + (f"+cu{CUDA}" if CUDA else "")


def nvidia():
    """What the program opens when it uses a GPU: cuBLASLt (with it comes NVRTC, for tuned plans), NCCL for ranks, CUPTI for
    profiles.  CUDA's runtime is linked in."""
    major = int(CUDA) if CUDA else 0
    names = ("nvidia-cublas", "nvidia-cuda-cupti")
    return [f"nvidia-nccl-cu{major}"] + [f"{name}>={major},<{major + 1}" for name in names] if CUDA else []


def build():
    """The folder with libhstu.so and hstu."""
    if GIVEN:
        return os.path.dirname(os.path.abspath(GIVEN))
    place, jobs = "build/wheel", f"-j{os.cpu_count() or 1}"
    subprocess.check_call(["make", jobs, f"B={place}", "MINIMAL=cuda", "ARCH=", f"{place}/libhstu.so", f"{place}/hstu"], cwd=ROOT)
    return os.path.join(ROOT, place)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            place, package = build(), os.path.join(self.build_lib, "hstu")
            shutil.copy(os.path.join(place, "libhstu.so"), package)
            os.makedirs(os.path.join(package, "bin"), exist_ok=True)
            shutil.copy(os.path.join(place, "hstu"), os.path.join(package, "bin"))
            shutil.copytree(os.path.join(ROOT, "configs"), os.path.join(package, "bin", "configs"), dirs_exist_ok=True)


class PlatformWheel(bdist_wheel):
    """Any Python 3, this machine's architecture and C library."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        name, libc = platform.machine(), platform.libc_ver()
        tag = f"linux_{name}"
        if not GIVEN and libc[0] == "glibc":
            tag = f"manylinux_{'_'.join(libc[1].split('.')[:2])}_{name}"
        return "py3", "none", os.environ.get("HSTU_PLATFORM") or tag


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), install_requires=nvidia(), cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
      distclass=BinaryDistribution)
