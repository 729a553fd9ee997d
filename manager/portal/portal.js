// The entry of the portal's scripts. The page `name` has the script `page-name.js`, which exports `showPage`.

import { formatTime, timeZoneName } from "./charts.js";
import { getElement } from "./updates.js";

// Shows times in the browser's time zone: in the tooltip of "5 min ago", and wherever the page shows a time to the second.
const timestampFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const localiseTimes = () => {
  for (const time of document.querySelectorAll("time[datetime]:not([data-local])")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.dataset.local = "";
    time.title = `${timestampFormat.format(date)} (${time.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    const localTime = formatTime(date.getTime() / 1000);
    if (time.classList.contains("exact")) time.textContent = localTime;
    if (time.dataset.at !== undefined) time.dataset.at = localTime.slice(11);
  }
  for (const zoneName of document.querySelectorAll(".zone:not([data-local])")) { zoneName.dataset.local = ""; zoneName.textContent = timeZoneName; }
};
new MutationObserver(localiseTimes).observe(document.body, { childList: true, subtree: true });
localiseTimes();

const { page } = document.body.dataset;
const showError = ({ message }) => { getElement("connection").textContent = `Cannot load the data of this page: ${message}`; };
import(`./page-${page}.js`).then(({ showPage }) => showPage()).catch(showError);
