// What scrolls sideways must be reachable with the keyboard: a tab stop, only where it scrolls.
(() => {
  const wide = ".katex-display, .pst-scrollable-table-container, .output, pre";
  function mark() {
    for (const box of document.querySelectorAll(wide)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible";
      if (scrolls) box.tabIndex = 0;
      else if (box.tabIndex === 0) box.removeAttribute("tabindex");
    }
  }
  addEventListener("load", mark);
  addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true); // a solution that opens
})();

// The boxes of a page that the reader ticked stay ticked in this browser, and nowhere else.
addEventListener("DOMContentLoaded", () => {
  const boxes = [...document.querySelectorAll(".task-list-item-checkbox")];
  const key = `ticked:${location.pathname}`;
  try {
    const ticked = JSON.parse(localStorage.getItem(key) ?? "[]");
    boxes.forEach((box, i) => {
      box.checked = ticked.includes(i);
      box.addEventListener("change", () => localStorage.setItem(
        key, JSON.stringify(boxes.flatMap((b, j) => (b.checked ? [j] : [])))));
    });
  } catch {
    // No storage (a private window): ticking still works until the page is left.
  }
});
