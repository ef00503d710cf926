package githubtest

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// The GitHub App that the server knows, if it has AppKey.
const (
	AppID          = "12345"
	InstallationID = "1"
)

// accessToken gives a token to the GitHub App.
func (s *Server) accessToken(r *http.Request) (int, any) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !s.isApp(token) {
		return http.StatusUnauthorized, map[string]string{"message": "A JSON web token could not be decoded"}
	}
	return http.StatusCreated, map[string]any{"token": Token, "expires_at": clock.Now().Add(time.Hour)}
}

// isApp reports whether the key of the GitHub App has signed a token that is valid now.
func (s *Server) isApp(token string) bool {
	parts := strings.Split(token, ".")
	if s.AppKey == nil || len(parts) != 3 {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(s.AppKey, crypto.SHA256, digest[:], signature) != nil {
		return false
	}
	var claims struct {
		Iss string
		Exp int64
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(data, &claims) == nil && claims.Iss == AppID && clock.Now().Unix() < claims.Exp
}
