package apiserver

import (
	"net/http"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rack/compliancereport"
)

// announceProgress makes kubectl print the progress of a long report while it waits.
func (c *Config) announceProgress() {
	build := c.Generic.BuildHandlerChainFunc
	c.Generic.BuildHandlerChainFunc = func(api http.Handler, config *genericapiserver.Config) http.Handler {
		return build(withProgress(api), config)
	}
}

// withProgress sends the header of a long report before its body, with a warning: kubectl prints
// warnings as soon as it has the header. An error after that can only be in the body, with the
// status 200. kubectl and client-go recognize it there; other clients might not, so they get the
// header with the body.
func withProgress(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !isReportForKubectl(req) {
			api.ServeHTTP(w, req)
			return
		}
		early := &earlyHeader{ResponseWriter: w}
		req = req.Clone(auditrecord.WithAnnounce(req.Context(), early.warn))
		req.Header.Del("Accept-Encoding") // The header comes before the size of the body is known.
		api.ServeHTTP(early, req)
	})
}

func isReportForKubectl(req *http.Request) bool {
	info, ok := genericapirequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || info.APIGroup != compliancereport.Resource.Group || info.Resource != compliancereport.Resource.Resource {
		return false
	}
	for accepted := range strings.SplitSeq(req.Header.Get("Accept"), ",") {
		if mediaType, _, _ := strings.Cut(accepted, ";"); strings.TrimSpace(mediaType) != runtime.ContentTypeJSON {
			return false
		}
	}
	return strings.HasPrefix(req.UserAgent(), "kubectl")
}

// An earlyHeader is a response whose header can be sent before the handler writes it.
type earlyHeader struct {
	http.ResponseWriter
	mu   sync.Mutex
	sent bool // by the handler or by warn
}

// warn sends the header with a warning, unless it has been sent. The handler must not write at the
// same time.
func (h *earlyHeader) warn(text string) {
	warning, err := utilnet.NewWarningHeader(299, "-", text)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.sent {
		return
	}
	h.sent = true
	h.Header().Add("Warning", warning)
	h.Header().Set("Content-Type", runtime.ContentTypeJSON)
	h.ResponseWriter.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(h.ResponseWriter).Flush() // Otherwise, kubectl prints the warning later.
}

func (h *earlyHeader) WriteHeader(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.sent {
		h.sent = true
		h.ResponseWriter.WriteHeader(status)
	}
}

func (h *earlyHeader) Write(data []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.ResponseWriter.Write(data)
}

func (h *earlyHeader) Unwrap() http.ResponseWriter { return h.ResponseWriter }
