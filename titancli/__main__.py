"""`python -m titancli`: the same as `titan`, where the script is not on the path."""

from __future__ import annotations

from titancli.app import main

if __name__ == "__main__":
    main()
