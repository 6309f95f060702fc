"use strict";
const live = document.getElementById("live");
const source = new EventSource(live.dataset.events);
source.onmessage = (message) => {
  live.innerHTML = message.data;
};
source.addEventListener("stored", (message) => {
  source.close();
  location.replace("/runs/" + message.data);
});
