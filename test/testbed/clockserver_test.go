package testbed

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestClockOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		handler := clockHandler(c.Now, c.Advance)
		ask := func(method, target string) (int, string) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(method, target, nil))
			return w.Code, strings.TrimSpace(w.Body.String())
		}
		began := time.Now().UTC()
		code, now := ask(http.MethodGet, "/clock")
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, began.Format(time.RFC3339Nano), now)

		code, now = ask(http.MethodPost, "/clock/advance?d=24h30m")
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, began.Add(24*time.Hour+30*time.Minute).Format(time.RFC3339Nano), now)
		assert.WithinDuration(t, began.Add(24*time.Hour+30*time.Minute), c.Now(), 0)

		for target, want := range map[string]string{
			"/clock/advance":           `use a duration such as 24h or 90m`,
			"/clock/advance?d=day":     `d is "day"`,
			"/clock/advance?d=-1h":     "does not run backwards",
			"/clock/advance?d=999999h": "use 0 to",
		} {
			code, answer := ask(http.MethodPost, target)
			assert.Equal(t, http.StatusBadRequest, code, target)
			assert.Contains(t, answer, want, target)
		}
		code, _ = ask(http.MethodGet, "/clock/advance?d=24h")
		assert.Equal(t, http.StatusMethodNotAllowed, code)
		code, _ = ask(http.MethodGet, "/")
		assert.Equal(t, http.StatusNotFound, code)
		assert.WithinDuration(t, began.Add(24*time.Hour+30*time.Minute), c.Now(), 0, "only the two requests have put it forward")
	})
}
