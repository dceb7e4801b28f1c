// The copy button of a console block takes the commands alone: neither the prompt, nor comments, nor what is printed.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("button[data-clipboard-target]");
    const block = button?.closest(".language-console");
    if (!block) return;
    const commands = [];
    let continues = false;
    for (const line of block.querySelector("code").textContent.split("\n")) {
      if (!line.startsWith("$ ") && !continues) continue;
      commands.push(line.replace(/^\$ /, "").replace(/\s+#\s.*$/, ""));
      continues = line.endsWith("\\");
    }
    button.dataset.clipboardText = commands.join("\n"); // which goes before the block's own text
  },
  true, // before the theme's own listener
);
