"""`python -m zr ARGUMENT..` and the commands zr, zr-train and zrd: the programs of the package."""
import os
import shutil
import sys

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def with_python(arguments):
    """The arguments with this Python before a script: `zr rehearse train.py` means `zr rehearse python train.py`."""
    for i, word in enumerate(arguments[1:], 1):
        if word.endswith(".py") and os.path.isfile(word) and not os.access(word, os.X_OK) and (i == 1 or not shutil.which(arguments[i - 1])):
            return [*arguments[:i], sys.executable, *arguments[i:]]
    return arguments


def main():
    name = os.path.basename(sys.argv[0])
    program = os.path.join(PROGRAMS, name if name in ("zr-train", "zrd") else "zr")
    os.execv(program, [program, *with_python(sys.argv[1:])])


if __name__ == "__main__":
    main()
