"use strict";
// Of several processes, the one that is chosen is shown; the address remembers it.
(() => {
  const picker = document.getElementById("picker");
  if (!picker) return;
  const articles = Array.from(document.querySelectorAll("article.process"));
  const show = () => articles.forEach((article, index) => { article.hidden = index !== picker.selectedIndex; });
  const remembered = () => {
    const pid = location.hash.slice(1);
    const index = Array.from(picker.options).findIndex((option) => option.value === pid);
    if (index >= 0) picker.selectedIndex = index;
    show();
  };
  picker.addEventListener("change", () => {
    history.replaceState(null, "", "#" + picker.value);
    show();
  });
  window.addEventListener("hashchange", remembered);
  remembered();
})();
