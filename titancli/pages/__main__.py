"""`python -m titancli.pages`: writes every page, every picture and the table of findings anew."""

from __future__ import annotations

from titancli.pages import FOLDER, pages
from titancli.pages.findings import FILE, findings_json
from titancli.pages.pictures import PICTURES, drawn


def main() -> None:
    """Writes the files, and says which have changed."""
    files = {**pages(), **{f"{picture.name}.svg": drawn(picture) for picture in PICTURES}}
    for path, text in [(FILE, findings_json()), *((FOLDER / name, text) for name, text in files.items())]:
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
