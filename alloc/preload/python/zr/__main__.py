"""`python -m zr ARGUMENT..` and the commands zr, zr-train and zrd: the programs of the package."""
import os
import sys

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def with_python(arguments):
    """The arguments with this Python before a script that is the program: `zr rehearse train.py` means `zr rehearse python train.py`. The
    program is the word after --, or directly after the subcommand."""
    if arguments[:1] in (["run"], ["rehearse"]):
        at = arguments.index("--") + 1 if "--" in arguments else 1
        word = arguments[at] if at < len(arguments) else ""
        if word.endswith(".py") and os.path.isfile(word) and not os.access(word, os.X_OK):
            return [*arguments[:at], sys.executable, *arguments[at:]]
    return arguments


def main():
    name = os.path.basename(sys.argv[0])
    program = os.path.join(PROGRAMS, name if name in ("zr-train", "zrd") else "zr")
    arguments = sys.argv[1:]
    os.execv(program, [program, *(with_python(arguments) if program.endswith("zr") else arguments)])


if __name__ == "__main__":
    main()
