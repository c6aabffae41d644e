"""`python -m titancli.pages`: writes every page and every picture anew."""

from __future__ import annotations

from titancli.pages import FOLDER, pages
from titancli.pages.pictures import PICTURES, drawn


def main() -> None:
    """Writes the files, and says which have changed."""
    files = {**pages(), **{f"{picture.name}.svg": drawn(picture) for picture in PICTURES}}
    for name, text in files.items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
