/* A button on each block of code that copies what is to be typed: behind the prompts where there are
   some, with the lines that continue a command, and without its output; else the whole block. */
(() => {
  const typed = (text) => {
    const lines = [];
    let goesOn = false;
    for (const line of text.replace(/\n+$/, "").split("\n")) {
      if (goesOn || line.startsWith("$ ")) {
        lines.push(goesOn ? line : line.slice(2));
        goesOn = line.endsWith("\\");
      }
    }
    return lines.length ? lines.join("\n") : text.replace(/\n+$/, "");
  };
  if (typeof document === "undefined") {
    module.exports = typed;  // the test of it
    return;
  }
  document.addEventListener("DOMContentLoaded", () => {
    if (!navigator.clipboard) return;  // a page over http, where browsers have none
    for (const block of document.querySelectorAll("div.highlight")) {
      const button = document.createElement("button");
      button.className = "copy";
      button.type = "button";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(typed(block.querySelector("pre").textContent));
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      block.append(button);
    }
  });
})();
