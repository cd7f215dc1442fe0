"""One model of a report, `model`, and the forms that it takes: terminal, HTML, Markdown, SVG."""
