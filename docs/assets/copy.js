// The copy button of a console block takes the commands alone: neither the prompt nor what they print.
document$.subscribe(() => {
  for (const button of document.querySelectorAll(".language-console .md-clipboard")) {
    const block = document.querySelector(button.dataset.clipboardTarget);
    const lines = block.textContent.split("\n");
    const commands = [];
    let continues = false;
    for (const line of lines) {
      if (line.startsWith("$ ") || continues) {
        commands.push(line.replace(/^\$ /, "").replace(/\s+#\s.*$/, ""));
        continues = line.endsWith("\\");
      }
    }
    button.dataset.clipboardText = commands.join("\n");
  }
});
