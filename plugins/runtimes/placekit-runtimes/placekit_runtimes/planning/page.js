for (const button of document.querySelectorAll("button")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(button.parentElement.nextElementSibling);
    button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
  });
}
