"""`python -m titancli`: the same as `titan`, where the script is not on the path."""

from __future__ import annotations

from titancli.start import main

if __name__ == "__main__":
    main()
