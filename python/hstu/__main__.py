"""python -m hstu: the program."""
from ._program import main

main()
